"""`hgpo data`: gets, builds, makes and shows data. The work is in `hgpo_envs` and `hgpo_datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hgpo_train.cli.command_types import DefaultRunGroup

app = typer.Typer(name="data", no_args_is_help=True, help="Fetch, build, generate and look at data.")
build = typer.Typer(name="build", no_args_is_help=True, help="Make what the environments open, from official files.")
fetch = typer.Typer(name="fetch", no_args_is_help=True, help="Get the official data.")
synth = typer.Typer(name="synth", no_args_is_help=True, help="Generate data of one's own.")
export = typer.Typer(name="export", no_args_is_help=True, help="Write built data out in the official form.")
show = typer.Typer(
    name="show",
    cls=DefaultRunGroup,
    no_args_is_help=True,
    help="Look at data that is there: `hgpo data show RUN`, or a command for the environments' data.",
)
import_ = typer.Typer(name="import", no_args_is_help=True, help="Make runs of rollouts that other programs wrote.")
for group in (build, fetch, synth, export, import_, show):
    app.add_typer(group)


@build.command("alfworld")
def build_alfworld(
    folder: Annotated[Path, typer.Argument(help="json_2.1.1, a folder that holds it, or a pack")],
    out: Annotated[Path, typer.Option(help="the pack to write")],
    grammar: Annotated[str | None, typer.Option(help="convert every game to this wording: move or put")] = None,
) -> None:
    """Packs official ALFWorld games into one file that opens in milliseconds."""
    from rich.progress import track

    from hgpo_envs.alfworld.data.pack import write_pack
    from hgpo_envs.alfworld.data.source import ALFWorldSource
    from hgpo_envs.errors import InputError

    if folder.exists() and out.exists() and out.samefile(folder):
        raise InputError(f"--out {out} is the data that is read; choose another name")
    source = ALFWorldSource(folder, grammar=grammar)
    ids = track(source.ids("all"), "packing")
    count = write_pack(out, ((task_id, source.read(task_id), source.trajectory(task_id)) for task_id in ids))
    typer.echo(f'{count:,} games, {out.stat().st_size:,} bytes. Next: gym.make("HGPO/ALFWorld-v0", data="{out}")')


@synth.command("alfworld")
def synth_alfworld(
    out: Annotated[Path, typer.Option(help="the pack to write, or a folder, which gets json_2.1.1")],
    games: Annotated[int, typer.Option(help="how many: two thirds train, a sixth each valid_seen, valid_unseen")] = 216,
    seed: Annotated[int, typer.Option(help="each seed gives other games, the same seed the same to the byte")] = 0,
) -> None:
    """Generates solvable ALFWorld games of all six task types; a name with an ending (.pack) makes a pack."""
    from rich.progress import track

    from hgpo_envs.alfworld.data.game_folder import write_folder
    from hgpo_envs.alfworld.data.pack import write_pack
    from hgpo_envs.alfworld.generation.store import GeneratedStore

    store = GeneratedStore(games, seed)
    ids = track(store.ids(), "generating")
    if out.suffix:
        count = write_pack(out, ((task_id, store.read(task_id), store.trajectory(task_id)) for task_id in ids))
    else:
        count = write_folder(store, ids, out)
    typer.echo(f'{count:,} games in {out}. Next: gym.make("HGPO/ALFWorld-v0", data="{out}")')


@fetch.command("alfworld")
def fetch_alfworld(
    out: Annotated[Path, typer.Option(help="a new folder for the games")] = Path("alfworld"),
    from_: Annotated[
        list[Path] | None,
        typer.Option("--from", help="an archive that you have already, instead of a download; repeat"),
    ] = None,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="also traj_data.json (1.4 GB), which the original program wants")
    ] = False,
    url: Annotated[list[str] | None, typer.Option(help="another address of the archive; repeat")] = None,
    sha256: Annotated[str | None, typer.Option(help="what the SHA-256 of the (single) archive must be")] = None,
) -> None:
    """Gets the official ALFWorld games. An interrupted download is resumed when the command is run again."""
    from hgpo_envs.alfworld.data import release
    from hgpo_train.cli.downloads import DownloadProgress

    with DownloadProgress() as shown:
        if from_:
            counts = release.install_files(out, from_, shown.unpacking)
        else:
            assets = release.assets(url, sha256, trajectories=trajectories)
            counts = release.fetch_release(out, assets, downloading=shown.downloading, unpacking=shown.unpacking)
    games = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    typer.echo(f"{games} games in {out}. Next: hgpo data build alfworld {out} --out {out}.pack")


@export.command("alfworld")
def export_alfworld(
    pack: Annotated[Path, typer.Argument(help="a pack, or a folder of official games")],
    out: Annotated[Path, typer.Option(help="the folder to write; json_2.1.1 is made in it")],
    split: Annotated[str, typer.Option(help="train, valid_seen, valid_unseen or all")] = "all",
    grammar: Annotated[str | None, typer.Option(help="convert every game to this wording: move or put")] = None,
) -> None:
    """Writes packed ALFWorld games as the files that the original program plays."""
    from rich.progress import track

    from hgpo_envs.alfworld.data.game_folder import ROOT, write_folder
    from hgpo_envs.alfworld.data.source import ALFWorldSource

    source = ALFWorldSource(pack, grammar=grammar)
    count = write_folder(source, track(source.ids(split), "writing"), out)
    typer.echo(f"{count:,} games in {out / ROOT}. Next: the original program with data_path {out / ROOT}/train")


@build.command("webshop")
def build_webshop(
    items: Annotated[Path, typer.Option(help="items_shuffle.json or items_shuffle_1000.json; may be gzipped")],
    attributes: Annotated[Path, typer.Option(help="items_ins_v2.json or items_ins_v2_1000.json")],
    human: Annotated[Path, typer.Option(help="items_human_ins.json")],
    out: Annotated[Path, typer.Option(help="the folder to make")],
    nouns: Annotated[
        str | None,
        typer.Option(help="a JSON file of title: nouns, 'spacy', or 'stand-in'; by default spaCy if it is installed"),
    ] = None,
    num_products: Annotated[int | None, typer.Option(help="use the first N records only, as the original does")] = None,
    skip_unusable: Annotated[bool, typer.Option(help="pass over records at which the original stops")] = False,
    force: Annotated[bool, typer.Option(help="replace a catalogue that exists already")] = False,
) -> None:
    """Builds a WebShop catalogue, search index included, that opens in milliseconds and is shared by processes."""
    from hgpo_envs.webshop.data.build import build
    from hgpo_train.cli.stage_progress import stage_progress

    with stage_progress() as progress:
        made = build(
            items,
            attributes,
            human,
            out,
            nouns=nouns,
            num_products=num_products,
            skip_unusable=skip_unusable,
            replace=force,
            progress=progress,
        )
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in made["skipped"].items() if count)
    typer.echo(
        f"{made['products']:,} products, {made['human_instructions']:,} human and {made['synthetic_instructions']:,} "
        f"synthetic instructions; nouns: {made['nouns']}" + (f"; skipped: {skipped}" if skipped else "")
    )
    if made["first_unusable"]:
        typer.echo(f"first unusable: {made['first_unusable']}")
    typer.echo(f'Next: gym.make("HGPO/WebShop-v0", data="{out}")')


@fetch.command("webshop")
def fetch_webshop(
    size: Annotated[str, typer.Option(help="small (1,000 products) or full (1.18 million, 5.6 GB)")] = "small",
    out: Annotated[Path, typer.Option(help="the folder to put the files into")] = Path("webshop"),
    local: Annotated[Path | None, typer.Option("--from", help="a folder that has the files already")] = None,
) -> None:
    """Gets WebShop's official raw files, from Google Drive or a mirror; run it again to resume."""
    from hgpo_envs.webshop.data.release import fetch_release
    from hgpo_train.cli.downloads import DownloadProgress

    with DownloadProgress() as shown:
        items, attributes, human = fetch_release(size, out, local=local, progress=shown.downloading)
    typer.echo(f"Next: hgpo data build webshop --items {items} --attributes {attributes} --human {human} --out DIR")


@synth.command("webshop")
def synth_webshop(
    products: Annotated[int, typer.Option(help="how many products")],
    out: Annotated[Path, typer.Option(help="the folder to make")],
    seed: Annotated[int, typer.Option(help="the same seed gives the same bytes")] = 0,
    oddities: Annotated[bool, typer.Option(help="plant the oddities of the official files")] = True,
    text: Annotated[float, typer.Option(help="length of the texts, 1 being that of the official files")] = 1.0,
    people: Annotated[float | None, typer.Option(help="human-style instructions a product")] = None,
    force: Annotated[bool, typer.Option(help="replace generated files that exist already")] = False,
) -> None:
    """Generates WebShop products and instructions, as raw files of the official kind."""
    from hgpo_envs.webshop.generation.synthetic import FILES, write_synthetic
    from hgpo_train.cli.stage_progress import stage_progress

    with stage_progress() as progress:
        write_synthetic(
            out,
            products,
            seed,
            quirks=oddities,
            text=text,
            people=people,
            replace=force,
            progress=lambda done: progress("products", done, products),
        )
    items, attributes, human = (out / name for name in FILES)
    typer.echo(f"Next: hgpo data build webshop --items {items} --attributes {attributes} --human {human} --out DIR")


@show.command("webshop")
def show_webshop(
    data: Annotated[Path | None, typer.Argument(help="a built catalogue; the bundled one by default")] = None,
    search: Annotated[str | None, typer.Option(help="show what this query finds")] = None,
    verify: Annotated[bool, typer.Option(help="compare every file with its checksum")] = False,
) -> None:
    """Shows what a WebShop catalogue holds."""
    from rich.console import Console

    from hgpo_envs.webshop.bundled import bundled_folder
    from hgpo_envs.webshop.catalogue import Catalogue
    from hgpo_train.cli.webshop_tables import catalogue_summary, search_results

    catalogue = Catalogue.open(data or bundled_folder())
    if verify:
        catalogue.verify()
    Console().print(search_results(catalogue, search) if search else catalogue_summary(catalogue))


@show.command("run")
def show_run(
    run: Annotated[Path, typer.Argument(help="a run's folder, a Parquet file, or a quoted pattern of them")],
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """Shows a run at a glance: tasks, episodes, success by kind of task, lengths, validity, sizes."""
    import orjson

    from hgpo_datasets.run_summary import summarize_run
    from hgpo_envs.unicode_text import clean_text
    from hgpo_train.cli.run_tables import print_run_summary

    seen = summarize_run(run)
    if as_json:
        typer.echo(orjson.dumps(seen.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
    else:
        print_run_summary(seen)
        typer.echo(f"Next: hgpo verify {clean_text(str(run))}")


@import_.command("verl-agent")
def import_verl_agent(
    dumps: Annotated[list[Path], typer.Argument(help="JSONL files with traj_uid, or folders of them")],
    out: Annotated[Path, typer.Option(help="the run's folder, a new one")],
    success_reward: Annotated[float, typer.Option(help="what the environments paid for success")] = 10.0,
) -> None:
    """Makes a run of verl-agent's rollouts; hashes and returns are computed."""
    from hgpo_datasets.interchange.verl_agent import import_rollouts

    found = import_rollouts(dumps, out, success_reward=success_reward)
    typer.echo(
        f"{found.steps:,} steps, {found.trajectories:,} trajectories, {found.groups:,} groups; "
        f"{found.left_out:,} records left out (copies, or steps of incomplete trajectories)"
    )
    typer.echo(f"Next: hgpo data show {out}")


@export.command("minari")
def export_minari(
    run: Annotated[Path, typer.Argument(help="a run's folder, a Parquet file, or a quoted pattern of them")],
    name: Annotated[str, typer.Option(help="Minari's name of the dataset, such as hgpo/alfworld/random-v0")],
) -> None:
    """Writes a run's texts, actions and rewards as a Minari dataset, into Minari's own folder."""
    from hgpo_datasets.interchange.minari import to_minari

    made = to_minari(run, name)
    typer.echo(f"{made.total_episodes:,} episodes, {made.total_steps:,} steps. Next: minari show {name}")
