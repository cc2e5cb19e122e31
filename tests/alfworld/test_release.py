"""The commands `hgpo data fetch alfworld` and `hgpo data synth alfworld`."""

import hashlib
import json
import shutil
import zipfile
from functools import partial
from pathlib import Path

import pytest
from local_server import Files, serving

from hgpo_envs.alfworld.data import release
from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource


@pytest.fixture
def site(tmp_path):
    """Return a folder served by a local server, and its address."""
    folder = tmp_path / "site"
    folder.mkdir()
    with serving(partial(Files, directory=folder)) as address:
        yield folder, address


@pytest.fixture
def archive(bundled, tmp_path):
    """Return a zip file of six games per split in the official layout."""
    chosen = [
        i
        for split in ("train", "valid_seen", "valid_unseen")
        for i in bundled.ids(split)[:6]
    ]
    write_folder(bundled, chosen, tmp_path / "packing")
    return Path(
        shutil.make_archive(str(tmp_path / "games"), "zip", tmp_path / "packing")
    )


def test_fetch_from_a_server(hgpo, site, archive, tmp_path):
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    out = tmp_path / "alfworld"
    archive.rename(site[0] / "games.zip")
    url = f"{site[1]}/games.zip"
    shown = hgpo.output(
        "data", "fetch", "alfworld", "--out", out, "--url", url, "--sha256", digest
    )
    assert "train 6, valid_seen 6, valid_unseen 6 games" in shown
    assert "Next: hgpo data build alfworld" in shown
    assert len(ALFWorldSource(out).ids("all")) == 18
    assert (
        json.loads((out / release.NOTE).read_text())["sources"][0]["sha256"] == digest
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "alfworld",
        "packing",
        "site",
    ]


@pytest.mark.slow
def test_fetch_refuses_in_one_line_and_leaves_no_files(hgpo, site, archive, tmp_path):
    for name, inside in (
        ("bad", "json_2.1.1/../../../outside"),
        ("empty", "json_2.1.1/README"),
    ):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as packed:
            packed.writestr(inside, "x")
    (site[0] / "cut.zip").write_bytes(archive.read_bytes()[:-500])
    archive.rename(site[0] / "games.zip")
    url = "http://no-such-host.invalid/games.zip"
    before = sorted(tmp_path.iterdir())
    for reason, *arguments in (
        ("answered 404", "--url", f"{site[1]}/absent.zip"),
        ("No such file", "--from", tmp_path / "absent.zip"),
        (
            "expected SHA-256 0000",
            "--url",
            f"{site[1]}/games.zip",
            "--sha256",
            "0" * 64,
        ),
        (
            "expected one archive with one checksum",
            "--url",
            "http://x/y",
            "--url",
            "http://x/z",
            "--sha256",
            "0" * 64,
        ),
        (
            "--sha256: expected 64 hexadecimal digits",
            "--url",
            "http://x/y",
            "--sha256",
            "ab",
        ),
        (
            f"{site[1]}/cut.zip: refused: expected a zip archive",
            "--url",
            f"{site[1]}/cut.zip",
        ),
        ("leads out of the folder", "--from", tmp_path / "bad.zip"),
        ("no playable game", "--from", tmp_path / "empty.zip"),
        (
            f"Without a network, download {url} elsewhere and run `hgpo data fetch alfworld --from g",
            "--url",
            url,
        ),
    ):
        code, _, err = hgpo(
            "data", "fetch", "alfworld", "--out", tmp_path / "alfworld", *arguments
        )
        assert (code, err.strip().count("\n"), reason in err) == (2, 0, True), err
        assert sorted(tmp_path.iterdir()) == before


def test_build_never_replaces_its_input_or_files_that_are_not_packs(
    hgpo, bundled, tmp_path
):
    (tmp_path / "thesis.tex").write_text("keep me")
    pack = tmp_path / "mine.pack"
    ids = bundled.ids("train")[:2]
    write_pack(
        pack, ((task, bundled.read(task), bundled.trajectory(task)) for task in ids)
    )
    (tmp_path / "link.pack").symlink_to(pack)
    before = {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")}
    for data, out, match in (
        (pack, tmp_path / "thesis.tex", "already exists and is not a pack"),
        (pack, pack, "is also the input"),
        (pack, tmp_path / "link.pack", "is also the input"),
        (pack, tmp_path, "expected a file, received a folder"),
    ):
        code, _, err = hgpo("data", "build", "alfworld", data, "--out", out)
        assert (code, err.count("error: "), match in err) == (2, 1, True), err
    assert {
        path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")
    } == before
    assert (
        hgpo(
            "data",
            "build",
            "alfworld",
            tmp_path / "mine.pack",
            "--out",
            tmp_path / "second.pack",
        )[0]
        == 0
    )
    assert (tmp_path / "second.pack").read_bytes() == pack.read_bytes()
    again = (
        "data",
        "build",
        "alfworld",
        pack,
        "--out",
        tmp_path / "second.pack",
        "--grammar",
        "put",
    )
    assert "second.pack exists already; replace it with --overwrite" in hgpo(*again)[2]
    assert (tmp_path / "second.pack").read_bytes() == pack.read_bytes()
    assert hgpo(*again, "--overwrite")[0] == 0
    assert (tmp_path / "second.pack").read_bytes() != pack.read_bytes()


@pytest.mark.slow
def test_synth_a_pack_and_a_folder(hgpo, tmp_path):
    command = ("data", "synth", "alfworld", "--seed", 7, "--games")
    assert "36 games" in hgpo(*command, 36, "--out", tmp_path / "mine.pack")[1]
    assert hgpo(*command, 36, "--out", tmp_path / "mine")[0] == 0
    pack = ALFWorldSource(tmp_path / "mine.pack")
    folder = ALFWorldSource(tmp_path / "mine")
    assert pack.ids("all") == folder.ids("all")
    assert all(pack.read(i) == folder.read(i) for i in pack.ids("all"))
    assert "already exists" in hgpo(*command, 36, "--out", tmp_path / "mine")[2]
    assert "at least 36 games" in hgpo(*command, 35, "--out", tmp_path / "few.pack")[2]
