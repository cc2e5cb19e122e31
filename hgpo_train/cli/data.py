"""`hgpo data`: gets, builds, makes and shows the environments' data. The work is in `hgpo_envs`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (Typer reads the annotations)
from typing import Annotated

import typer

app = typer.Typer(name="data", no_args_is_help=True, help="Fetch, build, generate and look at the environments' data.")
build = typer.Typer(name="build", no_args_is_help=True, help="Make what the environments open, from official files.")
fetch = typer.Typer(name="fetch", no_args_is_help=True, help="Get the official data.")
synth = typer.Typer(name="synth", no_args_is_help=True, help="Generate data of one's own.")
export = typer.Typer(name="export", no_args_is_help=True, help="Write built data out in the official form.")
for group in (build, fetch, synth, export):
    app.add_typer(group)


@build.command("alfworld")
def build_alfworld(
    folder: Annotated[Path, typer.Argument(help="json_2.1.1, a folder that holds it, or a pack")],
    out: Annotated[Path, typer.Option(help="the pack to write")],
    grammar: Annotated[str | None, typer.Option(help="convert every game to this wording: move or put")] = None,
) -> None:
    """Packs official ALFWorld games into one file that opens in milliseconds."""
    from rich.progress import track

    from hgpo_envs.alfworld.pack import write_pack
    from hgpo_envs.alfworld.source import ALFWorldSource

    source = ALFWorldSource(folder, grammar=grammar)
    ids = track(source.ids("all"), "packing")
    count = write_pack(out, ((task_id, source.read(task_id), source.trajectory(task_id)) for task_id in ids))
    typer.echo(f'{count:,} games, {out.stat().st_size:,} bytes. Next: gym.make("HGPO/ALFWorld-v0", data="{out}")')


@export.command("alfworld")
def export_alfworld(
    pack: Annotated[Path, typer.Argument(help="a pack, or a folder of official games")],
    out: Annotated[Path, typer.Option(help="the folder to write; json_2.1.1 is made in it")],
    split: Annotated[str, typer.Option(help="train, valid_seen, valid_unseen or all")] = "all",
    grammar: Annotated[str | None, typer.Option(help="convert every game to this wording: move or put")] = None,
) -> None:
    """Writes packed ALFWorld games as the files that the original program plays."""
    from rich.progress import track

    from hgpo_envs.alfworld.folder import ROOT, write_folder
    from hgpo_envs.alfworld.source import ALFWorldSource

    source = ALFWorldSource(pack, grammar=grammar)
    count = write_folder(source, track(source.ids(split), "writing"), out)
    typer.echo(f"{count:,} games in {out / ROOT}. Next: the original program with data_path {out / ROOT}/train")
