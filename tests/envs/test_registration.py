"""Registration of the package's ids, their JSON description, shared sources, and bad arguments."""

import subprocess
import sys

import gymnasium
import pytest
from doors import DoorsSource
from gymnasium.envs.registration import EnvSpec

import hgpo_envs
from hgpo_envs import sources
from hgpo_envs.errors import InputError
from hgpo_envs.registration import register_environments

IDS = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]


@pytest.mark.parametrize("env_id", IDS)
def test_ids_are_registered_by_import_and_described_in_json(env_id):
    before = gymnasium.spec(env_id)
    register_environments()  # a second time: nothing happens, no warning
    assert gymnasium.spec(env_id) is before
    assert EnvSpec.from_json(before.to_json()) == before
    gymnasium.register_envs(hgpo_envs)


def test_module_colon_id_needs_no_import():
    code = "import gymnasium; gymnasium.make('hgpo_envs:HGPO/ALFWorld-v0', backend='x')"
    root = sources.Path(hgpo_envs.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert "unknown backend 'x'. Known: native, original" in done.stderr


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"backend": "orginal"}, "unknown backend 'orginal'; did you mean 'original'? Known: native, original"),
        ({"data": 3}, "data: expected a path or None for the bundled set, received 3"),
    ],
)
def test_bad_arguments(env_id, make, arguments, line):
    with pytest.raises(InputError) as caught:
        make(env_id, **arguments)
    assert line in str(caught.value)


def test_sources_are_opened_once_and_again_when_their_file_changed(tmp_path):
    first = sources.open_shared("doors:DoorsSource", count=3)
    assert sources.open_shared("doors:DoorsSource", count=3) is first
    assert sources.open_shared("doors:DoorsSource", count=4) is not first
    assert isinstance(first.source, DoorsSource)
    path = tmp_path / "pack"
    path.write_text("one")
    one = sources.open_shared("builtins:str", object=str(path))
    assert sources.open_shared("builtins:str", object=str(path)) is one
    path.write_text("longer")
    assert sources.open_shared("builtins:str", object=str(path)) is not one
