"""`hgpo data`: download, build, generate, convert and show data with `hgpo_envs` and `hgpo_datasets`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hgpo_train.cli import common  # typer reads the annotations
from hgpo_train.cli.command_types import DefaultRunGroup, RedactedApp

app = RedactedApp(name="data", no_args_is_help=True, help="Download, build, generate, convert and show data.")


def _group(name: str, about: str, **options: Any) -> RedactedApp:
    group = RedactedApp(name=name, no_args_is_help=True, help=about, **options)
    app.add_typer(group)
    return group


build = _group("build", "Build packs and catalogues from official files.")
install = _group("install", "Install a benchmark's original program.")
fetch = _group("fetch", "Download the official data.")
synth = _group("synth", "Generate synthetic data.")
export = _group("export", "Export data to formats of other programs.")
import_ = _group("import", "Import rollouts that other programs wrote.")
show = _group("show", "Show a run, or with `webshop` a WebShop catalogue.", cls=DefaultRunGroup)

Run = Annotated[Path, typer.Argument(help="A run, a folder that contains runs, a Parquet file, or a quoted pattern.")]

Seed = Annotated[int, typer.Option(help="Seed of the content; the same seed gives the same bytes.")]


@build.command("alfworld")
def build_alfworld(
    folder: Annotated[Path, typer.Argument(help="The folder json_2.1.1, its parent, or a pack.")],
    out: Annotated[Path, typer.Option(help="The pack to write.")],
    grammar: Annotated[str | None, typer.Option(help="Convert commands to this verb: move or put.")] = None,
) -> None:
    """Pack official ALFWorld games into one file that opens in milliseconds."""
    from hgpo_envs.alfworld.data.pack import write_pack
    from hgpo_envs.alfworld.data.source import ALFWorldSource
    from hgpo_envs.errors import InputError
    from hgpo_train.cli.display import ProgressBars

    if folder.exists() and out.exists() and out.samefile(folder):
        raise InputError(f"--out {out} is also the input; choose another name")
    source = ALFWorldSource(folder, grammar=grammar)
    with ProgressBars() as bars:
        ids = bars.track(source.ids("all"), description="packing")
        count = write_pack(out, ((task_id, source.read(task_id), source.trajectory(task_id)) for task_id in ids))
    _next_alfworld(count, out)


def _next_alfworld(games: int, out: Path) -> None:
    from hgpo_envs.wording import counted

    typer.echo(f'{counted(games, "game")} in {out}. Next: gym.make("HGPO/ALFWorld-v0", data="{out}")')


@synth.command("alfworld")
def synth_alfworld(
    out: Annotated[
        Path, typer.Option(help="A pack (a name with a suffix, such as .pack), or a folder for json_2.1.1.")
    ],
    games: Annotated[int, typer.Option(help="Number; two thirds train, a sixth each valid_seen, valid_unseen.")] = 216,
    seed: Seed = 0,
) -> None:
    """Generate solvable ALFWorld games of all six task types."""
    from hgpo_envs.alfworld.data.game_folder import write_folder
    from hgpo_envs.alfworld.data.pack import write_pack
    from hgpo_envs.alfworld.generation.store import GeneratedStore
    from hgpo_train.cli.display import ProgressBars

    store = GeneratedStore(games, seed)
    with ProgressBars() as bars:
        ids = bars.track(store.ids(), description="generating")
        if out.suffix:
            count = write_pack(out, ((task_id, store.read(task_id), store.trajectory(task_id)) for task_id in ids))
        else:
            count = write_folder(store, ids, out)
    _next_alfworld(count, out)


@fetch.command("alfworld")
def fetch_alfworld(
    out: Annotated[Path, typer.Option(help="A new folder for the games.")] = Path("alfworld"),
    from_: Annotated[list[Path] | None, typer.Option("--from", help="A local archive; may be repeated.")] = None,
    trajectories: Annotated[bool, typer.Option("--trajectories", help="Also traj_data.json (1.4 GB).")] = False,
    url: Annotated[list[str] | None, typer.Option(help="Another URL of the archive; may be repeated.")] = None,
    sha256: Annotated[str | None, typer.Option(help="Expected SHA-256 of the (single) archive.")] = None,
) -> None:
    """Download the official ALFWorld games."""
    from hgpo_envs.alfworld.data import release
    from hgpo_train.cli.display import ProgressBars

    with ProgressBars() as bars:
        if from_:
            counts = release.install_files(out, from_, partial(bars.show, "unpacked files"))
        else:
            unpacking = partial(bars.show, "unpacked files")
            counts = release.fetch_release(
                out,
                url,
                sha256,
                trajectories=trajectories,
                downloading=lambda name: partial(bars.show, name),
                unpacking=unpacking,
            )
    games = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    following = common.next_commands(("data", "build", "alfworld", out, "--out", f"{out}.pack"))
    typer.echo(f"{games} games in {out}. {following}")


@build.command("webshop")
def build_webshop(
    items: Annotated[Path, typer.Option(help="items_shuffle.json or items_shuffle_1000.json; may be gzipped.")],
    attributes: Annotated[Path, typer.Option(help="items_ins_v2.json or items_ins_v2_1000.json.")],
    human: Annotated[Path, typer.Option(help="items_human_ins.json.")],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    nouns: Annotated[str | None, typer.Option(help="A JSON file by title, 'spacy' (default) or 'stand-in'.")] = None,
    skip_unusable: Annotated[bool, typer.Option(help="Skip records at which the original stops.")] = False,
) -> None:
    """Build a WebShop catalogue with a search index. It opens in milliseconds, and processes share its memory."""
    from hgpo_envs.webshop.data.build import build
    from hgpo_envs.wording import counted, listed
    from hgpo_train.cli.display import ProgressBars

    with ProgressBars() as bars:
        catalogue = build(items, attributes, human, out, nouns=nouns, skip_unusable=skip_unusable, progress=bars.show)
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in catalogue["skipped"].items() if count)
    parts = ("product", "human instruction", "synthetic instruction")
    counts = [counted(catalogue[f"{part.replace(' ', '_')}s"], part) for part in parts]
    typer.echo(f"{listed(counts)}; nouns: {catalogue['nouns']}" + (f"; skipped: {skipped}" if skipped else ""))
    if catalogue["first_unusable"]:
        typer.echo(f"first unusable: {catalogue['first_unusable']}")
    typer.echo(f'Next: gym.make("HGPO/WebShop-v0", data="{out}")')


@fetch.command("webshop")
def fetch_webshop(
    size: Annotated[str, typer.Option(help="small (1,000 products) or full (1.18 million, 5.6 GB).")] = "small",
    out: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("webshop"),
    local: Annotated[Path | None, typer.Option("--from", help="A local folder with the files, instead.")] = None,
) -> None:
    """Download WebShop's official raw files from Google Drive or a mirror. Files that are there are kept."""
    from hgpo_envs.webshop.data.release import fetch_release
    from hgpo_train.cli.display import ProgressBars

    with ProgressBars() as bars:
        _next_webshop(*fetch_release(size, out, local=local, progress=lambda name: partial(bars.show, name)))


def _next_webshop(items: Path, attributes: Path, human: Path) -> None:
    files = ("--items", items, "--attributes", attributes, "--human", human)
    typer.echo(common.next_commands(("data", "build", "webshop", *files, "--out", "DIR")))


@synth.command("webshop")
def synth_webshop(
    products: Annotated[int, typer.Option(help="Number of products.")],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    seed: Seed = 0,
) -> None:
    """Generate WebShop products and instructions in the format of the official raw files."""
    from hgpo_envs.webshop.generation.synthetic import FILES, write_synthetic
    from hgpo_train.cli.display import ProgressBars

    with ProgressBars() as bars:
        write_synthetic(out, products, seed, progress=lambda done: bars.show("products", done, products))
    _next_webshop(*(out / name for name in FILES))


@show.command("webshop")
def show_webshop(
    data: Annotated[Path | None, typer.Argument(help="A built catalogue. Default: the bundled one.")] = None,
    verify: Annotated[bool, typer.Option(help="Compare every file with its checksum.")] = False,
) -> None:
    """Show the manifest of a WebShop catalogue: what it was built from, and counts."""
    from hgpo_envs.webshop.bundled import bundled_folder
    from hgpo_envs.webshop.catalogue import Catalogue
    from hgpo_train.cli.display import print_table

    catalogue = Catalogue.open(data or bundled_folder())
    if verify:
        catalogue.verify()
    facts = {"catalogue": catalogue.folder, **catalogue.manifest, "files": len(catalogue.manifest["files"])}
    rows = []
    for name, value in facts.items():
        parts = [f"{key} {item}" for key, item in value.items()] if isinstance(value, dict) else [str(value)]
        rows.append((name.replace("_", " "), ", ".join(parts) or "none"))
    print_table(["", ""], rows, texts=2)


@show.command("run")
def show_run(run: Run, as_json: common.Json = False) -> None:
    """Show a summary of a run: tasks, episodes, success by task type, lengths, validity, sizes."""
    from hgpo_datasets.run_summary import summarize_run
    from hgpo_train.cli.data_tables import print_run
    from hgpo_train.cli.display import print_json

    summary = summarize_run(run)
    if as_json:
        print_json(summary)
    else:
        print_run(summary)
        typer.echo(f"\n{common.next_commands(('stats', run))}")


@import_.command("verl-agent")
def import_verl_agent(
    dumps: Annotated[list[Path], typer.Argument(help="JSONL files with traj_uid, or folders of them.")],
    out: Annotated[Path, typer.Option(help="A new folder for the run.")],
    success_reward: Annotated[float, typer.Option(help="The reward of the environments for success.")] = 10.0,
) -> None:
    """Convert verl-agent's rollouts to a run. Hashes and returns are computed."""
    from hgpo_datasets.interchange.verl_agent import import_rollouts
    from hgpo_envs.wording import counted

    report = import_rollouts(dumps, out, success_reward=success_reward)
    typer.echo(
        f"{counted(report.steps, 'step')}, {counted(report.trajectories, 'trajectory', 'trajectories')}, "
        f"{counted(report.groups, 'group')}; {counted(report.left_out, 'record')} skipped (duplicates, or steps of "
        "incomplete trajectories)"
    )
    typer.echo(common.next_commands(("data", "show", out)))


@export.command("minari")
def export_minari(
    run: Run,
    name: Annotated[str, typer.Option(help="The id of the Minari dataset, such as hgpo/alfworld/random-v0.")],
) -> None:
    """Write a run's texts, actions and rewards as a Minari dataset to Minari's data folder."""
    from hgpo_datasets.interchange.minari import to_minari
    from hgpo_envs.wording import counted

    dataset = to_minari(run, name)
    episodes, steps = counted(dataset.total_episodes, "episode"), counted(dataset.total_steps, "step")
    typer.echo(f"{episodes}, {steps}. Next: minari show {name}")


@export.command("delta")
def export_delta(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Annotated[str, typer.Option(help="The table's folder or URL (s3://, gs://, az://).")],
) -> None:
    """Write the rows of a run to a Delta Lake table, instead of those of an earlier export. Requires interchange.

    Object stores are configured with environment variables such as AWS_ENDPOINT_URL and AWS_ACCESS_KEY_ID.
    """
    from hgpo_datasets.interchange.delta import to_delta
    from hgpo_envs.wording import counted

    report = to_delta(run, out)
    typer.echo(f"{counted(report.rows, 'row')}: version {report.version} of {out}")
