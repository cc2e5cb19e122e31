"""Benchmarks of other packages: by entry point, as module:object, in the process; broken ones harm no others."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from distribution import write_distribution
from doors import DoorsSource, solution

from hgpo_envs import environment_spec
from hgpo_envs.environment_spec import EnvironmentSpec, environment_ids, make_player, spec_named
from hgpo_envs.errors import InputError
from hgpo_envs.registration import register, resolve_id
from hgpo_envs.responses import Response

ROOT = Path(__file__).parents[2]

HOUSE = """
from doors import DoorsSource, solution
from hgpo_envs.environment_spec import EnvironmentSpec


class Expert:
    def reset(self, task, state, engine=None):
        self.left = solution(task.id)

    def act(self, state):
        return self.left.pop(0)


HOUSE = EnvironmentSpec(
    id="Mine/Doors-v0", source="doors:DoorsSource", max_steps=9, template="Go: {{ task }}", players={"expert": Expert}
)
"""
BROKEN = {
    "absent": ("", "absent_module:SPEC", "ModuleNotFoundError: No module named 'absent_module'"),
    "raising": ("raise RuntimeError('first\\nsecond')", "raising:SPEC", "RuntimeError: first second"),
    "leaving": ("raise SystemExit(3)", "leaving:SPEC", "SystemExit: 3"),
    "other": ("SPEC = 7", "other:SPEC", "expected an EnvironmentSpec, received int"),
    "misnamed": (HOUSE.replace("Mine/", "Theirs/"), "misnamed:HOUSE", "received the id 'Theirs/Doors-v0'"),
}


@pytest.fixture
def nothing_added(monkeypatch):
    """Leaves no benchmark registered after the test."""
    monkeypatch.setattr(environment_spec, "_added", {})
    before = set(gymnasium.registry)
    yield
    for env_id in set(gymnasium.registry) - before:
        del gymnasium.registry[env_id]


def python(script: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script with these folders on the path, beside this repository and tests/worlds."""
    path = [*map(str, folders), str(ROOT), str(ROOT / "datasets"), str(ROOT / "tests/worlds")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "default"}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)


def test_an_installed_benchmark(tmp_path):
    write_distribution(tmp_path, "my-house", {"house": HOUSE}, {"hgpo.environments": {"Mine/Doors-v0": "house:HOUSE"}})
    done = python(
        """
import sys, gymnasium, hgpo_envs
from gymnasium.envs.registration import EnvSpec
from hgpo_envs.environment_spec import make_player
assert "house" not in sys.modules  # known without being imported
env = gymnasium.make("Mine/Doors-v0", count=3)
observation, info = env.reset(seed=1)
assert observation["prompt"] == "Go: " + info["task"]
player = make_player("expert", "Doors")
player.reset(env.unwrapped.episode.task, env.unwrapped.episode.state)
done = False
while not done:
    observation, reward, *done, info = env.step(player.act(None))
    done = any(done)
assert info["won"] and reward == 1
again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
assert again.unwrapped.tasks[:] == ["train-0", "train-1", "train-2"] and again.unwrapped.episode.settings.max_steps == 9
assert gymnasium.make_vec("Mine/Doors-v0", num_envs=2).unwrapped.reset()[1]["task"][0]
from hgpo_train.rollout.env_handle import open_env
assert open_env("Mine/Doors-v0", count=4).tasks[:] == [f"train-{n}" for n in range(4)]
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_broken_packages_break_no_others(tmp_path):
    for name, (source, value, _) in BROKEN.items():
        modules = {name: source} if source else {}
        write_distribution(tmp_path, f"the-{name}-one", modules, {"hgpo.environments": {f"Broken/{name}-v0": value}})
    write_distribution(tmp_path, "nameless", {}, {"hgpo.environments": {"what is this?": "nameless:SPEC"}})
    write_distribution(tmp_path, "my-house", {"house": HOUSE}, {"hgpo.environments": {"Mine/Doors-v0": "house:HOUSE"}})
    tried = [f"Broken/{name}-v0" for name in BROKEN]
    done = python(
        f"""
import gymnasium, hgpo_envs
from hgpo_envs.errors import InputError
for env_id in {tried}:
    try:
        gymnasium.make(env_id)
    except InputError as error:
        print(error)
for env_id in ("Mine/Doors-v0", "HGPO/ALFWorld-v0"):
    gymnasium.make(env_id).reset(seed=1)
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(BROKEN)
    for line, (name, (_, _, reason)) in zip(lines, BROKEN.items(), strict=True):
        assert reason in line
        assert f"of the distribution the-{name}-one" in line
    assert "hgpo.environments of the distribution nameless: expected a Gymnasium id" in done.stderr


@pytest.mark.slow
def test_two_packages_with_one_id_or_one_name(tmp_path):
    for number, env_id in enumerate(["Mine/Doors-v0", "Mine/Doors-v0", "Theirs/Doors-v0"]):
        source = HOUSE.replace("Mine/Doors-v0", env_id)
        points = {"hgpo.environments": {env_id: f"house{number}:HOUSE"}}
        write_distribution(tmp_path / str(number), f"dist-{number}", {f"house{number}": source}, points)
    script = """
import gymnasium, hgpo_envs, sys
gymnasium.make("Mine/Doors-v0")
print([name for name in sys.modules if name.startswith("house")])
gymnasium.make("Theirs/Doors-v0")
"""
    done = python(script, *(tmp_path / str(number) for number in range(3)))
    assert done.stdout.strip() == "['house0']"
    assert "'Mine/Doors-v0' is declared by dist-0 and by dist-1; dist-0 is used" in done.stderr
    assert "'Theirs/Doors-v0' has the same name as 'Mine/Doors-v0'; choose another name" in done.stderr


def test_a_module_in_the_working_directory(tmp_path, monkeypatch, nothing_added):
    (tmp_path / "house_here.py").write_text(HOUSE.replace("Doors-v0", "Doors-v3"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert resolve_id("house_here:HOUSE") == "Mine/Doors-v3"
    env = gymnasium.make("Mine/Doors-v3")
    env.reset(seed=1)
    assert pickle.loads(pickle.dumps(env.unwrapped)).episode.state == env.unwrapped.episode.state
    assert resolve_id("house_here:HOUSE") == "Mine/Doors-v3"  # again changes nothing
    for text, line in (
        ("house_here:NONE", "expected an EnvironmentSpec as module:object, received 'house_here:NONE': AttributeError"),
        ("no_such_house:HOUSE", "No module named 'no_such_house'"),
        ("house_here:solution", "expected an EnvironmentSpec, received function"),
    ):
        with pytest.raises(InputError, match=line):
            resolve_id(text)
    (tmp_path / "unversioned.py").write_text(
        "import gymnasium\ngymnasium.register('Unversioned', 'doors_env:make_doors')"
    )
    for text in ("doors_env:HGPO-Test/Doors-v0", "unversioned:Unversioned"):  # Gymnasium's own form
        assert resolve_id(text) == text


def shout(text: str) -> Response:
    return Response(text.strip("!"), text.endswith("!"), "" if text.endswith("!") else "not loud enough")


def doors_source(count: int) -> DoorsSource:
    return DoorsSource(count)


def test_response_rules_and_arguments(nothing_added):
    register(EnvironmentSpec(id="Mine/Doors-v0", source=doors_source, parse_response=shout))
    env = gymnasium.make("Mine/Doors-v0", count=5, action_format="response").unwrapped
    env.reset(options={"task": "train-0"})
    *_, info = env.step("open door!")
    assert (info["action"], info["action_valid"]) == ("open door", True)
    *_, info = env.step("go on")
    assert (info["action"], info["action_valid"], info["action_admissible"]) == ("go on", False, True)
    again = pickle.loads(pickle.dumps(env))
    assert again.step(solution("train-0")[-1] + "!")[4]["won"]
    with pytest.raises(InputError, match="Mine/Doors-v0: missing a required argument: 'count'"):
        gymnasium.make("Mine/Doors-v0")
    with pytest.raises(InputError, match="unknown argument 'cuont'; did you mean 'count'"):
        gymnasium.make("Mine/Doors-v0", cuont=5)


def test_what_is_no_benchmark(nothing_added):
    with pytest.raises(InputError, match="expected a Gymnasium id such as Mine/House-v0, received 'my house'"):
        EnvironmentSpec(id="my house", source=doors_source)
    with pytest.raises(InputError, match="unknown player 'exprt'; did you mean 'expert'"):
        EnvironmentSpec(id="Mine/Doors-v0", source=doors_source, players={"exprt": object})
    with pytest.raises(InputError, match="with the name 'House', as in the id; received 'Doors'"):
        EnvironmentSpec(id="Mine/House-v0", source=doors_source).open_source(count=3)
    with pytest.raises(InputError, match="expected a class or function at the top of a module"):
        EnvironmentSpec(id="Mine/Doors-v0", source=lambda: DoorsSource()).open_source()
    with pytest.raises(InputError, match="'Mine/ALFWorld-v0' has the same name as 'HGPO/ALFWorld-v0'"):
        register(EnvironmentSpec(id="Mine/ALFWorld-v0", source=doors_source))
    register(EnvironmentSpec(id="Mine/Doors-v0", source=doors_source))
    with pytest.raises(InputError, match="another environment 'Mine/Doors-v0' is registered already"):
        register(EnvironmentSpec(id="Mine/Doors-v0", source=DoorsSource))
    with pytest.raises(InputError, match=r"unknown Doors player 'expert'\. Known: none"):
        make_player("expert", "Doors")


def test_a_template_that_fails_is_one_line(nothing_added):
    register(EnvironmentSpec(id="Mine/Doors-v0", source=DoorsSource, template="{{ task.nothing.more }}"))
    with pytest.raises(InputError, match="prompt template of Doors fails"):
        gymnasium.make("Mine/Doors-v0").reset(seed=1)


def test_names_of_benchmarks():
    assert spec_named("ALFWorld").id == "HGPO/ALFWorld-v0"
    assert spec_named("Doors") is None
    assert environment_ids()[:3] == ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0", "HGPO/AppWorld-v0"]
