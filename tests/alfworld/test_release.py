"""The commands `hgpo data fetch alfworld` and `hgpo data synth alfworld`."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler

import pytest
from local_server import Quiet, serving

from hgpo_envs.alfworld.data import release
from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.errors import InputError


class Files(Quiet, SimpleHTTPRequestHandler):
    """Serves a folder."""


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
    chosen = [i for split in ("train", "valid_seen", "valid_unseen") for i in bundled.ids(split)[:6]]
    write_folder(bundled, chosen, tmp_path / "packing")
    path = tmp_path / "json_2.1.2_tw-pddl.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted((tmp_path / "packing").rglob("*.*")):
            packed.write(file, file.relative_to(tmp_path / "packing"))
    return path


def test_fetch_from_a_server(hgpo, site, archive, tmp_path):
    folder, address = site
    archive.rename(folder / archive.name)
    digest = hashlib.sha256((folder / archive.name).read_bytes()).hexdigest()
    out = tmp_path / "alfworld"
    code, shown, _ = hgpo(
        "data", "fetch", "alfworld", "--out", out, "--url", f"{address}/{archive.name}", "--sha256", digest
    )
    assert code == 0
    assert "train 6, valid_seen 6, valid_unseen 6 games" in shown
    assert "Next: hgpo data build alfworld" in shown
    source = ALFWorldSource(out)
    assert len(source.ids("all")) == 18
    note = json.loads((out / release.NOTE).read_text())
    assert note["sources"][0]["sha256"] == digest
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "alfworld"))) == ["alfworld"]


def refused(hgpo, tmp_path, match, *arguments):
    """Assert that a command prints one line to stderr, exits with 2 and leaves no files."""
    out = tmp_path / "alfworld"
    code, _, err = hgpo("data", "fetch", "alfworld", "--out", out, *arguments)
    assert code == 2
    assert err.strip().count("\n") == 0
    assert match in err
    assert not out.exists()
    assert not list(tmp_path.glob(".hgpo*"))


def test_fetch_refuses_in_one_line(hgpo, site, archive, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr("json_2.1.1/../../../outside", "x")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as packed:
        packed.writestr("json_2.1.1/README", "nothing here")
    shutil.copy(archive, site[0] / "games.zip")
    url = "http://no-such-host.invalid/games.zip"
    offline = f"Without a network, download {url} elsewhere and run `hgpo data fetch alfworld --from games.zip`"
    refused(hgpo, tmp_path, "answered 404", "--url", f"{site[1]}/absent.zip")
    refused(hgpo, tmp_path, "No such file", "--from", tmp_path / "absent.zip")
    refused(hgpo, tmp_path, "expected SHA-256 0000", "--url", f"{site[1]}/games.zip", "--sha256", "0" * 64)
    refused(hgpo, tmp_path, "leads out of the folder", "--from", tmp_path / "bad.zip")
    refused(hgpo, tmp_path, "no playable game", "--from", tmp_path / "empty.zip")
    refused(hgpo, tmp_path, offline, "--url", url)


def test_ctrl_c_prints_how_to_resume_and_a_damaged_archive_is_fetched_again(hgpo, site, archive, tmp_path, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    out, asset = tmp_path / "alfworld", release.Asset(f"{site[1]}/games.zip")
    (site[0] / "games.zip").write_bytes(archive.read_bytes()[:-500])
    with monkeypatch.context() as patch:
        patch.setattr(release, "unpack", interrupt)
        code, _, err = hgpo("data", "fetch", "alfworld", "--out", out, "--url", asset.url)
    assert (code, "run the same command again to resume" in err, out.exists()) == (130, True, False)
    with pytest.raises(InputError, match=r"truncated|damaged"):
        release.fetch_release(out, [asset])
    archive.replace(site[0] / "games.zip")
    assert release.fetch_release(out, [asset])["train"] == 6
    assert not list(tmp_path.glob(".hgpo*"))


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


UNPACK = """
import os, signal, sys
from pathlib import Path
from hgpo_envs.alfworld.data import release
def kill(files):
    if files == 5:
        os.kill(os.getpid(), signal.SIGKILL)
release.fetch_release(Path(sys.argv[1]), [release.Asset(sys.argv[2])], unpacking=kill)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_after_a_kill_the_next_call_cleans_up_and_downloads_nothing_again(site, archive, tmp_path):
    archive.rename(site[0] / "games.zip")
    out, url = tmp_path / "alfworld", f"{site[1]}/games.zip"
    killed = subprocess.run([sys.executable, "-c", UNPACK, str(out), url], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".hgpo-*.tmp"))
    (site[0] / "games.zip").unlink()
    assert release.fetch_release(out, [release.Asset(url)])["train"] == 6
    assert not list(tmp_path.glob(".hgpo*"))
    assert len(ALFWorldSource(out).ids("all")) == 18


def test_build_never_replaces_its_input_or_files_that_are_not_packs(hgpo, bundled, tmp_path):
    (tmp_path / "thesis.tex").write_text("keep me")
    pack = tmp_path / "mine.pack"
    ids = bundled.ids("train")[:2]
    write_pack(pack, ((task, bundled.read(task), bundled.trajectory(task)) for task in ids))
    (tmp_path / "link.pack").symlink_to(pack)
    before = contents(tmp_path)
    for data, out, match in (
        (pack, tmp_path / "thesis.tex", "already exists and is not a pack"),
        (pack, pack, "is also the input"),
        (pack, tmp_path / "link.pack", "is also the input"),
        (pack, tmp_path, "found a folder"),
    ):
        code, _, err = hgpo("data", "build", "alfworld", data, "--out", out)
        assert (code, err.count("error: "), match in err) == (2, 1, True), err
    assert contents(tmp_path) == before
    code, _, _ = hgpo("data", "build", "alfworld", tmp_path / "mine.pack", "--out", tmp_path / "second.pack")
    assert code == 0
    assert (tmp_path / "second.pack").read_bytes() == pack.read_bytes()


def test_assets():
    assert [asset.url for asset in release.assets()] == [release.GAMES]
    assert [asset.url for asset in release.assets(trajectories=True)] == [release.GAMES, release.TRAJECTORIES]
    assert release.assets(["http://x/y.zip"], "ab") == [release.Asset("http://x/y.zip", "ab")]
    with pytest.raises(InputError, match="expected one archive with one checksum, received 2 archives"):
        release.assets(["http://x/y.zip", "http://x/z.zip"], "ab")


def test_addresses_equal_those_of_the_originals_downloader(original_python):
    from pathlib import Path

    script = Path(original_python).parent / "alfworld-download"
    if not script.exists():
        pytest.skip("no alfworld-download beside the original's Python")
    text = script.read_text()
    assert f'TW_PDDL_FILES_URL = "{release.GAMES}"' in text
    assert f'JSON_FILES_URL = "{release.TRAJECTORIES}"' in text


def test_synth_a_pack_and_a_folder(hgpo, tmp_path):
    code, shown, _ = hgpo("data", "synth", "alfworld", "--games", 36, "--seed", 7, "--out", tmp_path / "mine.pack")
    assert code == 0
    assert "36 games" in shown
    code, _, _ = hgpo("data", "synth", "alfworld", "--games", 36, "--seed", 7, "--out", tmp_path / "mine")
    assert code == 0
    pack, folder = ALFWorldSource(tmp_path / "mine.pack"), ALFWorldSource(tmp_path / "mine")
    assert pack.ids("all") == folder.ids("all")
    assert all(pack.read(i) == folder.read(i) for i in pack.ids("all"))
    code, _, err = hgpo("data", "synth", "alfworld", "--games", 36, "--out", tmp_path / "mine")
    assert code == 2
    assert "already exists" in err
    code, _, err = hgpo("data", "synth", "alfworld", "--games", 3, "--out", tmp_path / "few.pack")
    assert code == 2
    assert "at least 36 games" in err
