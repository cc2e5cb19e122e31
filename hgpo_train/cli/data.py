"""`hgpo data`: download, build, generate, convert and show data with `hgpo_envs` and `hgpo_datasets`."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

Run = Annotated[
    Path,
    Parameter(
        help="A run, a folder that contains runs, a Parquet file, or a quoted pattern."
    ),
]
Seed = Annotated[
    int, Parameter(help="Seed of the content; the same seed gives the same bytes.")
]


def build_alfworld(
    folder: Path,
    /,
    *,
    out: Path,
    grammar: str | None = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Pack official ALFWorld games into one file that opens in milliseconds.

    Args:
        folder: The folder json_2.1.1, its parent, or a pack.
        out: The pack to write.
        grammar: Convert commands to this verb: move or put.
        overwrite: Whether to replace a pack.
    """
    from hgpo_envs.alfworld.data.pack import write_pack
    from hgpo_envs.alfworld.data.source import ALFWorldSource
    from hgpo_envs.errors import InputError
    from hgpo_train.cli.display import ProgressBars

    if folder.exists() and out.exists() and out.samefile(folder):
        raise InputError(f"--out {out} is also the input; choose another name")
    _check_pack(out, overwrite=overwrite)
    source = ALFWorldSource(folder, grammar=grammar)
    with ProgressBars() as bars:
        ids = bars.track(source.ids("all"), description="packing")
        count = write_pack(
            out,
            (
                (task_id, source.read(task_id), source.trajectory(task_id))
                for task_id in ids
            ),
        )
    _next_alfworld(count, out)


def _check_pack(out: Path, *, overwrite: bool) -> None:
    """Raise `InputError` if a path is a folder, a file of another kind, or a pack that may not be replaced."""
    from hgpo_envs.alfworld.data.pack import check_replaceable

    if not out.is_dir():
        check_replaceable(out)
    common.check_output_file(out, "games.pack", overwrite=overwrite)


def _next_alfworld(games: int, out: Path) -> None:
    from hgpo_envs.wording import counted

    print(
        f"{counted(games, 'game')} in {out}. {_next_rollout('HGPO/ALFWorld-v0', out)}"
    )


def _next_rollout(env: str, data: Path) -> str:
    """Return the command that rolls out tasks of new data."""
    return common.next_commands(
        (
            "rollout",
            "--env",
            env,
            "--data",
            data,
            "--out",
            f"runs/{data.absolute().stem}",
        )
    )


def synth_alfworld(
    *, out: Path, games: int = 216, seed: Seed = 0, overwrite: options.Overwrite = False
) -> None:
    """Generate solvable ALFWorld games of all six task types.

    Args:
        out: A pack (a name with a suffix, such as .pack), or a folder for json_2.1.1.
        games: Number, at least 36; two thirds train, a sixth each valid_seen, valid_unseen.
        seed: The seed.
        overwrite: Whether to replace a pack.
    """
    from hgpo_envs.alfworld.data.game_folder import write_folder
    from hgpo_envs.alfworld.data.pack import write_pack
    from hgpo_envs.alfworld.generation.store import GeneratedStore
    from hgpo_train.cli.display import ProgressBars

    if out.suffix:
        _check_pack(out, overwrite=overwrite)
    store = GeneratedStore(games, seed)
    with ProgressBars() as bars:
        ids = bars.track(store.ids, description="generating")
        if out.suffix:
            count = write_pack(
                out,
                (
                    (task_id, store.read(task_id), store.trajectory(task_id))
                    for task_id in ids
                ),
            )
        else:
            count = write_folder(store, ids, out)
    _next_alfworld(count, out)


def fetch_alfworld(
    *,
    out: Path = Path("alfworld"),
    local: Annotated[list[Path] | None, Parameter("--from")] = None,
    trajectories: bool = False,
    url: list[str] | None = None,
    sha256: str | None = None,
) -> None:
    """Download the official ALFWorld games.

    Args:
        out: A new folder for the games.
        local: A local archive; may be repeated.
        trajectories: Also traj_data.json (1.4 GB).
        url: Another URL of the archive; may be repeated.
        sha256: Expected SHA-256 of the (single) archive.
    """
    from hgpo_envs.alfworld.data import release
    from hgpo_envs.errors import InputError
    from hgpo_train.cli.display import ProgressBars

    if local and sha256 is not None:
        raise InputError(
            "--sha256 is the checksum of a download; leave it out with --from"
        )
    with ProgressBars() as bars:
        counts = release.fetch_release(
            out,
            url,
            sha256,
            local=local or (),
            trajectories=trajectories,
            downloading=lambda name: partial(bars.show, name),
            unpacking=partial(bars.show, "unpacked files"),
        )
    games = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    following = common.next_commands(
        ("data", "build", "alfworld", out, "--out", f"{out}.pack")
    )
    print(f"{games} games in {out}. {following}")


def build_webshop(
    *,
    items: Path,
    attributes: Path,
    human: Path,
    out: Path,
    nouns: str | None = None,
    skip_unusable: bool = False,
) -> None:
    """Build a WebShop catalogue with a search index. It opens in milliseconds, and processes share its memory.

    Args:
        items: items_shuffle.json or items_shuffle_1000.json; may be gzipped.
        attributes: items_ins_v2.json or items_ins_v2_1000.json.
        human: items_human_ins.json.
        out: The folder to create.
        nouns: A JSON file by title, 'spacy' (default) or 'stand-in'.
        skip_unusable: Skip records at which the original stops.
    """
    from hgpo_envs.webshop.data.build import build
    from hgpo_envs.wording import counted, listed
    from hgpo_train.cli.display import ProgressBars

    with ProgressBars() as bars:
        catalogue = build(
            items,
            attributes,
            human,
            out,
            nouns=nouns,
            skip_unusable=skip_unusable,
            progress=bars.show,
        )
    parts = ("product", "human instruction", "synthetic instruction")
    counts = [counted(catalogue[f"{part.replace(' ', '_')}s"], part) for part in parts]
    line = f"{listed(counts)}; nouns: {catalogue['nouns']}"
    if skipped := ", ".join(
        f"{count:,} {reason}" for reason, count in catalogue["skipped"].items() if count
    ):
        line += f"; skipped: {skipped}"
    print(line)
    if catalogue["first_unusable"]:
        print(f"first unusable: {catalogue['first_unusable']}")
    print(_next_rollout("HGPO/WebShop-v0", out))


def fetch_webshop(
    *,
    size: str = "small",
    out: Path = Path("webshop"),
    local: Annotated[Path | None, Parameter("--from")] = None,
) -> None:
    """Download WebShop's official raw files from Google Drive or a mirror. Files that are there are kept.

    Args:
        size: small (1,000 products) or full (1.18 million, 5.6 GB).
        out: The folder for the files.
        local: A local folder with the files, instead.
    """
    from hgpo_envs.webshop.data.release import fetch_release
    from hgpo_train.cli.display import ProgressBars

    with ProgressBars() as bars:
        _next_webshop(
            *fetch_release(
                size, out, local=local, progress=lambda name: partial(bars.show, name)
            )
        )


def _next_webshop(items: Path, attributes: Path, human: Path) -> None:
    files = ("--items", items, "--attributes", attributes, "--human", human)
    print(common.next_commands(("data", "build", "webshop", *files, "--out", "DIR")))


def synth_webshop(*, products: int, out: Path, seed: Seed = 0) -> None:
    """Generate WebShop products and instructions in the format of the official raw files.

    Args:
        products: Number of products.
        out: The folder to create.
        seed: The seed.
    """
    from hgpo_envs.webshop.generation.synthetic import FILES, write_synthetic
    from hgpo_train.cli.display import ProgressBars

    with ProgressBars() as bars:
        write_synthetic(
            out,
            products,
            seed,
            progress=lambda done: bars.show("products", done, products),
        )
    _next_webshop(*(out / name for name in FILES))


def show_webshop(data: Path | None = None, /, *, verify: bool = False) -> None:
    """Show the manifest of a WebShop catalogue: what it was built from, and counts.

    Args:
        data: A built catalogue. Default: the bundled one.
        verify: Compare every file with its checksum.
    """
    from hgpo_envs.webshop.bundled import bundled_folder
    from hgpo_envs.webshop.catalogue import Catalogue
    from hgpo_train.cli.display import print_table

    catalogue = Catalogue.open(data or bundled_folder())
    if verify:
        catalogue.verify()
    facts = {
        "catalogue": catalogue.folder,
        **catalogue.manifest,
        "files": len(catalogue.manifest["files"]),
    }
    rows = []
    for name, value in facts.items():
        parts = (
            [f"{key} {item}" for key, item in value.items()]
            if isinstance(value, dict)
            else [str(value)]
        )
        rows.append((name.replace("_", " "), ", ".join(parts) or "none"))
    print_table(["", ""], rows, texts=2)


def show_run(run: Run, /, *, as_json: options.Json = False) -> None:
    """Show a summary of a run: tasks, episodes, success by task type, lengths, validity, sizes.

    Args:
        run: The run.
        as_json: Whether to print JSON.
    """
    from hgpo_train.analysis.run_summary import summarize_run
    from hgpo_train.cli.data_tables import print_run
    from hgpo_train.cli.display import print_json

    summary = summarize_run(run)
    if as_json:
        print_json(summary)
    else:
        print_run(summary)
        print(f"\n{common.next_commands(('stats', run))}")


def import_rollouts(
    files: list[Path],
    /,
    *,
    out: Path,
    format: str | None = None,  # noqa: A002 - the option's name
    reward: list[str] | None = None,
    success_reward: float | None = None,
) -> None:
    """Convert rollouts of another program to a run. Hashes and returns are computed.

    Formats: inspect, openai (JSONL of messages), rllm, skyrl, trl, verifiers, verl, verl-agent.

    Args:
        files: Files, or folders of them.
        out: A new folder for the run.
        format: The format, if it is not found out.
        reward: A number that counts as reward, and its weight, name=weight; may be repeated.
        success_reward: verl-agent's reward of a success; 10 by default.
    """
    from hgpo_datasets.interchange import rollouts
    from hgpo_envs.errors import InputError
    from hgpo_envs.wording import counted
    from hgpo_train.settings import read_assignments

    weights = read_assignments("--reward", reward or (), {})
    for name, weight in weights.items():
        if type(weight) not in (int, float) or not math.isfinite(weight):
            raise InputError(
                f"--reward {name}: expected a finite number as weight, received {weight!r}"
            )
    report = rollouts.import_rollouts(
        files, out, format=format, reward=weights, success_reward=success_reward
    )
    counts = (
        counted(report.steps, "step"),
        counted(report.trajectories, "trajectory", "trajectories"),
        counted(report.groups, "group"),
    )
    print(f"{report.format}: {', '.join(counts)}")
    for each in report.missing:
        print(f"missing: {each}")
    if report.skipped:
        print(
            f"skipped, of no known format: {', '.join(report.skipped[:5])}{' …' * (len(report.skipped) > 5)}"
        )
    print(common.next_commands(("data", "show", out), ("advantages", out)))


def export_minari(run: Run, /, *, name: str) -> None:
    """Write a run's texts, actions and rewards as a Minari dataset to Minari's data folder.

    Args:
        run: The run.
        name: The id of the Minari dataset, such as hgpo/alfworld/random-v0.
    """
    from hgpo_datasets.interchange.minari import to_minari
    from hgpo_envs.wording import counted

    dataset = to_minari(run, name)
    episodes = counted(dataset.total_episodes, "episode")
    print(
        f"{episodes}, {counted(dataset.total_steps, 'step')}. Next: minari show {name}"
    )


def export_delta(run: Path, /, *, out: str) -> None:
    """Write the rows of a run to a Delta Lake table, instead of those of an earlier export. Requires interchange.

    Object stores are configured with environment variables such as AWS_ENDPOINT_URL and AWS_ACCESS_KEY_ID.

    Args:
        run: The folder of a run.
        out: The table's folder or URL (s3://, gs://, az://).
    """
    from hgpo_datasets.interchange.delta import to_delta
    from hgpo_envs.wording import counted

    report = to_delta(run, out)
    print(f"{counted(report.rows, 'row')}: version {report.version} of {out}")


def export_openai(
    run: Run, /, *, out: Path, overwrite: options.Overwrite = False
) -> None:
    """Write the conversations of a run as JSON lines with messages, in OpenAI's form.

    Args:
        run: The run.
        out: The file to write.
        overwrite: Whether to replace a file.
    """
    from hgpo_datasets.interchange.openai import to_openai
    from hgpo_envs.wording import counted

    common.check_output_file(out, "steps.jsonl", overwrite=overwrite)
    print(f"{counted(to_openai(run, out), 'conversation')} in {out}")
