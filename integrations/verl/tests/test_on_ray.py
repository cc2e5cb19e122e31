"""The plug-in in verl itself, on Ray and without a GPU: two training steps through verl's own command.

Real: Ray, TransferQueue, verl's trainer, its agent loop workers, its FSDP engine (with gloo), the environments.
Stand-ins (`verl_cpu_platform`, `verl_on_cpu`): the platform, and the generating server, with the trained model behind
it. A worker is killed while it plays.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from hgpo_datasets import scan_steps, verify
from hgpo_train.advantages import compute
from hgpo_train.cli.app import run as run_command
from hgpo_train.rollout import collect

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PLUGINS = "verl_cpu_platform,hgpo_verl.plugin,verl_on_cpu"
KILL_AFTER = 20
PARAMETERS = {
    "history_length": 2,
    "reward": "score",
    "invalid_action_penalty": 0.1,
    "gamma": 0.95,
}
CONFIG = """
name = "tiny"
seed = 3
iterations = 2
[environment]
id = "HGPO/ALFWorld-v0"
max_steps = 5
history_length = 2
action_format = "command"
[model]
path = "{model}"
compute_dtype = "float32"
gradient_checkpointing = false
[rollout]
engine = "vllm"
engine_options = {{ tensor_parallel_size = 1 }}
tasks = 3
group_size = 4
max_prompt_tokens = 700
max_response_tokens = 12
[advantage]
estimator = "hgpo"
parameters = {{ history_length = 2, reward = "score", invalid_action_penalty = 0.1, gamma = 0.95 }}
[update]
mini_batch_size = 32
micro_batch_tokens = 4096
[optimiser]
learning_rate = 1e-3
[evaluation]
every = 2
tasks = 2
before_training = false
[checkpoint]
every = 2
[tracking]
tensorboard = false
"""
MODEL = """
import json, sys
from pathlib import Path
from hgpo_train.models.tiny import TinyShape, save_tiny
folder, texts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
save_tiny(folder, texts, TinyShape(layers=2))

# A few steps of imitation, so that some of its answers are admissible commands and advantages differ.
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.manual_seed(0)
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(40):
    loss = 0.0
    for number, command in enumerate(("look", "inventory", "xyzzy", "help me")):
        prompt = texts[(4 * step + number) % len(texts)][-200:]
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        start = tokenizer(chat, add_special_tokens=False)["input_ids"]
        ids = start + tokenizer(command, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        labels = [-100] * len(start) + ids[len(start) :]
        loss = loss + model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss / 4
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
model.save_pretrained(folder)
print("loss", float(loss))
"""
ON_A_CPU = {
    "trainer.device": "cpu",
    "trainer.v1.trainer_mode": "hgpo_watched",
    "actor_rollout_ref.rollout.name": "tiny",
    "actor_rollout_ref.rollout.agent.num_workers": 2,
    "actor_rollout_ref.actor.use_torch_compile": "false",
    "reward.num_workers": 1,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    # 3 for the processes that verl places on a GPU, 2 for TransferQueue, 1 to start others with
    "ray_kwargs.ray_init.num_cpus": 6,
    "+ray_kwargs.ray_init.num_gpus": 1,
    "+ray_kwargs.ray_init.include_dashboard": "false",
    "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES": f"'{PLUGINS}'",
}
"""What differs from a run on a GPU."""

PATIENCE = {
    "RAY_worker_register_timeout_seconds": "3600",
    "RAY_raylet_start_wait_time_s": "3600",
    "RAY_health_check_timeout_ms": "3600000",
    "RAY_memory_monitor_refresh_ms": "0",
}
"""Ray's own clocks, which kill processes that a busy machine starts or answers late, and its monitor of memory."""


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("HGPO_VERL_PYTHON")
    if found is None:
        pytest.skip("needs HGPO_VERL_PYTHON, a Python with integrations/verl")
    return found


@pytest.fixture(scope="module")
def run(python, tmp_path_factory) -> Path:
    """Train, kill a worker on the way, and return the run's folder."""
    base = tmp_path_factory.mktemp("verl")
    folder = base / "run"
    texts = collect(
        "HGPO/ALFWorld-v0",
        "random",
        base / "random",
        tasks=6,
        group_size=2,
        max_steps=8,
        progress=False,
    )
    (base / "texts.json").write_text(
        json.dumps(texts.steps.collect()["prompt"].to_list())
    )
    subprocess.run(
        [python, "-c", MODEL, base / "model", base / "texts.json"], check=True
    )
    (base / "tiny.toml").write_text(CONFIG.format(model=base / "model"))
    launch = [
        python,
        "-m",
        "hgpo_verl.command",
        base / "tiny.toml",
        "--gpus",
        "1",
        "--out",
        folder,
    ]
    command = subprocess.run(launch, check=True, capture_output=True, text=True).stdout
    assert "-m verl.trainer.main_ppo" in command
    environment = {
        **os.environ,
        "VERL_USE_EXTERNAL_MODULES": PLUGINS,
        "VERL_PLATFORM": "cpu",
        "VERL_TEST_FOLDER": str(folder),
        "VERL_TEST_PAUSE": str(KILL_AFTER),
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        **PATIENCE,
    }
    arguments = [
        python,
        "-m",
        "verl.trainer.main_ppo",
        "--config-dir",
        folder,
        "--config-name",
        "verl",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*arguments, *(f"{name}={value}" for name, value in ON_A_CPU.items())],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=base,
        )
        try:
            wait_for(lambda: (folder / "paused").exists(), process, folder)
            victims = workers(folder)
            assert len(victims) == 2
            os.kill(victims[0], signal.SIGKILL)
            (folder / "go on").touch()
            wait_for(lambda: process.poll() is not None, None, folder)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, end_of(folder)
    return folder


def wait_for(condition, process, folder: Path) -> None:
    """Wait without a limit: how long Ray and verl take depends on the load, and CI ends a job that hangs."""
    while not condition():
        assert process is None or process.poll() is None, end_of(folder)
        time.sleep(0.2)


def end_of(folder: Path) -> str:
    return (folder / "log").read_text()[-6000:]


def workers(folder: Path) -> list[int]:
    """Return the processes of this run's agent loop workers."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            named = (
                (path / "cmdline").read_bytes().startswith(b"ray::AgentLoopWorkerTQ")
            )
            if (
                named
                and f"VERL_TEST_FOLDER={folder}".encode()
                in (path / "environ").read_bytes()
            ):
                found.append(int(path.name))
        except OSError:  # it has ended
            continue
    return sorted(found)


@pytest.fixture(scope="module")
def trained(run) -> list[dict]:
    """Return what verl was given to train on, by step."""
    return [json.loads((run / f"trained-{step}.json").read_text()) for step in (1, 2)]


def test_every_rollout_is_in_the_step_table_once_although_a_worker_died(run) -> None:
    assert "has died; a new one plays its unfinished tasks" in (run / "log").read_text()
    steps = scan_steps(run).collect()
    assert not steps["aborted"].any()
    rollouts = steps.group_by("iteration", "task_id", "group").agg(
        pl.col("trajectory").n_unique()
    )
    assert Counter(rollouts["iteration"]) == {0: 3, 1: 3}
    assert set(rollouts["trajectory"]) == {4}
    lengths = steps.group_by("trajectory").agg(pl.col("step").max() + 1 == pl.len())
    assert lengths["step"].all()
    assert verify(run).ok


@pytest.mark.parametrize("iteration", [0, 1])
def test_verl_trains_on_the_advantages_of_compute(run, trained, iteration) -> None:
    steps = scan_steps(run).filter(pl.col("iteration") == iteration).collect()
    expected = {
        (trajectory, step): value
        for trajectory, step, value in compute(steps, "hgpo", **PARAMETERS)
        .select("trajectory", "step", "advantage")
        .collect()
        .iter_rows()
    }
    real = [row for row in trained[iteration]["rows"] if not row["padding"]]
    assert {(row["trajectory"], row["step"]) for row in real} == expected.keys()
    assert len(real) == len(steps)
    for row in real:
        assert all(row["response_mask"])
        for value in row["advantages"]:
            assert abs(value - expected[row["trajectory"], row["step"]]) < 1e-6
    assert any(abs(value) > 0.01 for value in expected.values())


@pytest.mark.parametrize("iteration", [0, 1])
def test_padding_has_no_part_in_the_loss(trained, iteration) -> None:
    rows = trained[iteration]["rows"]
    padding = [row for row in rows if row["padding"]]
    assert padding
    assert len(rows) % 32 == 0
    assert not any(
        any(row["response_mask"]) or any(row["advantages"]) for row in padding
    )


def test_weights_are_updated_and_reach_the_engine(run, trained) -> None:
    """In both iterations verl's engine and the generating server agree on the tokens' probabilities."""
    assert all(seen["metrics"]["actor/grad_norm"] > 0 for seen in trained)
    versions = (
        scan_steps(run)
        .group_by("iteration")
        .agg(pl.col("policy_version").unique())
        .sort("iteration")
        .collect()
    )
    assert versions["policy_version"].to_list() == [[0], [1]]
    for seen in trained:
        for row in seen["rows"]:
            if not row["padding"]:
                gaps = [
                    abs(a - b)
                    for a, b in zip(
                        row["rollout_log_probs"], row["old_log_probs"], strict=True
                    )
                ]
                assert max(gaps) < 1e-3


def test_evaluations_and_checkpoints_are_kept(run) -> None:
    steps = scan_steps(run / "evaluation").collect()
    assert steps["iteration"].unique().to_list() == [2]
    assert steps["task_id"].n_unique() == 2
    assert (run / "checkpoints/global_step_2/actor").is_dir()


@pytest.mark.parametrize(
    "command",
    [
        ["stats", "RUN"],
        ["verify", "RUN"],
        [
            "advantages",
            "RUN",
            "--estimator",
            "hgpo",
            "--set",
            "reward=score",
            "--out",
            "OUT/advantages",
        ],
        ["view", "RUN", "-o", "OUT/page.html"],
        [
            "truth",
            "RUN",
            "--policy",
            "random",
            "--rollouts",
            "2",
            "--out",
            "OUT/truth.parquet",
        ],
    ],
)
def test_commands_work_on_the_run(run, command, tmp_path) -> None:
    copy = shutil.copytree(
        run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "log")
    )
    words = [
        word.replace("RUN", str(copy)).replace("OUT", str(tmp_path)) for word in command
    ]
    run_command(words)


def test_launch_files_are_valid_for_verl(python) -> None:
    code = """
import sys
from pathlib import Path
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import OmegaConf
for file in sorted(Path(sys.argv[1]).glob("*.yaml")):
    with initialize_config_dir(config_dir=sys.argv[1], version_base=None):
        config = compose(file.stem, overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])
    with initialize_config_module("verl.trainer.config", version_base=None):
        stock = compose("ppo_trainer")
    own = {"hgpo", "data.hgpo"}
    def known(ours, theirs, prefix=""):
        for key, value in ours.items():
            name = f"{prefix}{key}"
            if name in own or "runtime_env" in name or "override" in name or "mixed_precision" in name:
                continue
            assert key in theirs or name in ADDED, f"{file.stem}: verl has no {name}"
            if isinstance(value, dict) and theirs.get(key) is not None:
                known(value, theirs[key], f"{name}.")
    ADDED = {"actor_rollout_ref.rollout.agent.agent_loop_manager_class"}
    known(OmegaConf.to_container(config), OmegaConf.to_container(stock))
    print(file.stem)
"""
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": ""}
    done = subprocess.run(
        [python, "-c", code, str(HERE.parent / "launch")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.split()) == 10
