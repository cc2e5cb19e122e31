"""Wrong inputs of every command and of the public Python functions: one line each, and nothing is left behind.

Each case names what the line must contain: the value or name that was received, and usually what was expected.
"""

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import polars as pl
import pytest

import hgpo_train as hgpo
from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_train import settings
from hgpo_train.cli import main
from hgpo_train.rollout import ExecutionOptions, PolicyContext, RolloutSpec, collect, make_policy, open_env
from hgpo_train.training.config import Config, load_config

DOORS = "doors_env:HGPO-Test/Doors-v0"
ALFWORLD, WEBSHOP = "HGPO/ALFWorld-v0", "HGPO/WebShop-v0"

ROLLOUT = f"rollout --out x --env {DOORS}"
EVAL = f"eval --out x --env {DOORS} --split train"

COMMANDS = {
    "rolout": "No such command 'rolout'; did you mean 'rollout'",
    "rollout": "Missing option '--out'; see hgpo rollout --help",
    "rollout --out x surplus": "(surplus)",
    "rollout --out x --tsks 3": "No such option: --tsks (Possible options: --slots, --tasks)",
    "rollout --out x --tasks many": "--tasks: expected an integer, received 'many'",
    "rollout --out x --max-failed much": "--max-failed: expected a number, received 'much'",
    "rollout --out ''": "--out: expected a path, received an empty text",
    "rollout --out=": "--out: expected a path, received an empty text",
    f"{ROLLOUT} --tasks 0": "tasks: expected at least 1, received 0",
    f"{ROLLOUT} --group-size -3": "group_size: expected at least 1, received -3",
    f"{ROLLOUT} --seed 99999999999999999999": "seed: expected an integer of at most 64 bits, received 99999",
    f"{ROLLOUT} --split valid": "unknown split 'valid'. Known: train, test, all",
    f"{ROLLOUT} --order sorted": "unknown task order 'sorted'. Known: ",
    f"{ROLLOUT} --history-length -1": "history_length: expected an integer of at least 0, received -1",
    f"{ROLLOUT} --max-steps 0": "max_steps: expected an integer of at least 1, received 0",
    f"{ROLLOUT} --action-format json": "unknown action_format 'json'. Known: command, response, number",
    f"{ROLLOUT} --env-option nonsense": "--env-option: expected name=value, received 'nonsense'",
    f"{ROLLOUT} --env-option levels=3": "unexpected keyword argument 'levels'",
    f"{ROLLOUT} --policy-option temperature=1": "policy random has no options, received temperature",
    f"{ROLLOUT} --policy randm": "unknown policy 'randm'; did you mean 'random'?",
    f"{ROLLOUT} --policy ''": "unknown policy ''",
    f"{ROLLOUT} --policy nothing:here": "unknown policy 'nothing'",
    f"{ROLLOUT} --policy bug:policy": "received 'bug:policy': ModuleNotFoundError: No module named 'nothing_there'",
    f"{ROLLOUT} --policy mine:number": "mine:number: expected a PolicySpec, a function of one request",
    f"{ROLLOUT} --policy mine:three": "mine:three: expected a function of one argument, the request",
    f"{ROLLOUT} --policy mine:absent": "'mine' has no attribute 'absent'",
    f"{ROLLOUT} --policy mixture:random=0": "with positive weights, received 'random=0'",
    f"{ROLLOUT} --policy expert": "unknown benchmark 'Doors'",
    f"{ROLLOUT} --policy openai:": "policy openai: expected a model",
    f"{ROLLOUT} --policy openai:m --policy-option temperature=hot": "temperature: expected float, received 'hot'",
    f"{ROLLOUT} --policy openai:m --policy-option temprature=1": "did you mean 'temperature'?",
    f"{ROLLOUT} --dynamic 3": "expected at least the number of wanted groups (16), received 3",
    f"{ROLLOUT} --slots 0": "slots: expected at least 1, received 0",
    f"{ROLLOUT} --workers 0": "slots: expected at least 1, received 0",
    f"{ROLLOUT} --max-failed 2": "--max-failed: expected a share from 0 to 1, received 2.0",
    f"{ROLLOUT} --max-failed nan": "--max-failed: expected a share from 0 to 1, received nan",
    f"{ROLLOUT} --without promt": "unknown column or family 'promt'; did you mean 'prompt'?",
    f"rollout --env {DOORS} --out file": "--out file: expected a folder, received a file",
    f"rollout --env {DOORS} --out file/below": "expected a path in a folder, but ",
    f"rollout --env {DOORS} --out run --max-steps 5 --seed 5": "was written with",
    "rollout --out x --env HGPO/ALFWrld-v0": "unknown environment 'HGPO/ALFWrld-v0'",
    "rollout --out x --env CartPole-v1": "CartPole-v1: expected observations of text, received Box",
    "rollout --out x --env nothing:here": "expected an EnvironmentSpec as module:object, received 'nothing:here'",
    "rollout --out x --env mine:number": "mine:number: expected an EnvironmentSpec, received int",
    "rollout --out x --data /no/pack": "no ALFWorld data at /no/pack",
    "rollout --out x --data file": "file",
    f"rollout --out x --env {WEBSHOP} --data file": "file",
    "rollout --out x --env-option prompt_template=compcat": "missing file 'compcat'; did you mean 'compact'?",
    "rollout --out x --env-option history_lenght=2": "did you mean 'history_length'?",
    "serve --port 70000": "--port: expected a number from 0 to 65535, received 70000",
    "serve --max-sessions 0": "--max-sessions: expected a positive number, received 0",
    "serve --idle-timeout nan": "--idle-timeout: expected a positive number, received nan",
    "serve --call-timeout -1": "--call-timeout: expected a positive number, received -1",
    "serve --max-message-kb inf": "--max-message-kb: expected a positive number, received inf",
    "serve --split none": "unknown split 'none'",
    "serve --order sorted": "unknown sampling 'sorted'",
    "serve --action-format json": "unknown action_format 'json'",
    "serve --env HGPO/ALFWrld-v0": "unknown environment 'HGPO/ALFWrld-v0'",
    f"serve --env {ALFWORLD} --env {ALFWORLD}": f"--env {ALFWORLD}: ALFWorld is served already",
    f"serve --env {ALFWORLD} --env {WEBSHOP} --data file": "--data: expected one --env, received several",
    "eval": "Missing option '--out'",
    f"eval --out x --env {DOORS}": "has no default split for evaluation; give one with --split",
    f"{EVAL} --split none": "unknown split 'none'",
    f"{EVAL} --seeds a,b": "--seeds: expected integers separated by commas, received 'a,b'",
    f"{EVAL} --seeds 1,1": "expected distinct integers from 0 to 2147483647, received [1, 1]",
    f"{EVAL} --seeds -1": "expected distinct integers from 0 to 2147483647, received [-1]",
    f"{EVAL} --temperature 1": "--temperature: policy 'random' does not sample from a model",
    f"{EVAL} --policy openai:m --temperature -1": "temperature: expected float >= 0.0, received -1.0",
    f"{EVAL} --against /no/run": "/no/run",
    f"{EVAL} --max-failed -1": "expected a share from 0 to 1, received -1.0",
    f"{EVAL} --policy randm": "unknown policy 'randm'; did you mean 'random'?",
    "advantages": "Missing argument 'run'",
    "advantages /no/run": "/no/run: no such",
    "advantages s3://bucket/run": "expected a local run or file, received a URL",
    "advantages empty": "empty",
    "advantages file": "file cannot be read: not a complete Parquet file",
    "advantages plain.parquet": "the table has no `task_id`",
    "advantages run -e hgppo": "unknown estimator 'hgppo'; did you mean 'hgpo'?",
    "advantages run -e mine:absent": "expected an estimator as module:object, received 'mine:absent'",
    "advantages run -e mine:number": "mine:number: expected a function or an Estimator, received 3",
    "advantages run -e mine:positional": "the estimator 'positional': expected keyword-only parameters",
    "advantages run -e hgpo -e hgpo": "received 'advantage_hgpo' twice",
    "advantages run --gamma 2": "parameter gamma: expected float <= 1.0, received 2.0",
    "advantages run --gamma x": "--gamma: expected a number, received 'x'",
    "advantages run --mode std": "unknown parameter mode 'std'. Known: mean_std_norm, mean_norm",
    "advantages run --context state": "unknown parameter context 'state'; did you mean 'states'?",
    "advantages run --reward won": "unknown parameter reward 'won'. Known: reward, success, score",
    "advantages run --reward-scale nan": "reward_scale: expected a finite number, received nan",
    "advantages run --history-length -1": "history_length: expected int >= 0, received -1",
    "advantages run --set alpha": "--set: expected name=value, received 'alpha'",
    "advantages run --set alfa=1": "unknown parameter 'alfa'; did you mean 'alpha'?",
    "advantages run -e grpo --history-length 2": "unknown parameter 'history_length'",
    "advantages run --chunk-rows 0": "chunk_rows: expected an integer of at least 1, received 0",
    "advantages run --out empty": "expected an output file, received the folder empty",
    "advantages run --out file/below.parquet": "--out file/below.parquet: expected a path in a folder",
    "advantages run --processes 0": "processes: expected an integer of at least 1, received 0",
    "advantages run --parts --processes 0": "processes: expected an integer of at least 1, received 0",
    "advantages run --parts --out file": "file: expected a folder of parts, received a file; change --out",
    "advantages run --parts --out run/parts": "expected an output file outside of the input run",
    "advantages s3://bucket/run --parts": "s3://bucket/run: expected --out with the folder or URL of the parts",
    "advantages run --out s3://bucket/table": "expected a local run or file, received a URL; --parts reads and writes",
    "stats": "Missing argument 'run'",
    "stats run --processes 0": "processes: expected an integer of at least 1, received 0",
    "verify run --processes 0": "processes: expected an integer of at least 1, received 0",
    "data export delta plain.parquet --out x": "plain.parquet: expected the folder of one run",
    "data export delta /no/run --out x": "/no/run: no such",
    "stats /no/run": "/no/run: no such",
    "stats plain.parquet": "the table has no `task_id`",
    "stats run --by kind": "unknown column to split by 'kind'",
    "stats run --history-length -2": "history_length: expected int >= 0, received -2",
    "stats run --context x": "unknown parameter context 'x'",
    "stats run --reward-scale inf": "reward_scale: expected a finite number, received inf",
    "stats run --plot x.gif": "--plot x.gif: expected a file that ends in .html, .svg, .png, .json",
    "compare-estimators run --truth plain.parquet -e hgpo --device cpu": "--device is an option of --model",
    "stats run --permutations -1": "permutations: expected an integer of at least 0, received -1",
    "stats run --seed -1": "seed: expected an integer of at least 0, received -1",
    "stats run --out file": "--out file: expected a folder, received a file",
    "stats run --out file/below": "--out file/below: expected a path in a folder",
    "compare-estimators run": "Missing option '--truth'",
    "compare-estimators run --truth plain.parquet": "Missing option '--estimators'",
    "compare-estimators run --truth /no/truth -e hgpo": "--truth /no/truth: expected a truth table, received no file",
    "compare-estimators run --truth file -e hgpo": "file cannot be read: not a complete Parquet file",
    "compare-estimators run --truth plain.parquet -e hgpo": "the truth table has no trajectory, step",
    "compare-estimators run --truth plain.parquet -e hgpo:alfa=1": "unknown parameter 'alfa'; did you mean 'alpha'?",
    "compare-estimators run --truth plain.parquet -e hgpo --group-sizes x": "--group-sizes: expected integers",
    "compare-estimators run --truth plain.parquet -e hgpo --redraws 0 --out file": "redraws: expected an integer of at",
    "compare-estimators run --truth plain.parquet -e hgpo --out file": "--out file: expected a folder, received a file",
    "truth": "Missing argument 'run'",
    "truth /no/run": "/no/run: expected the folder of a run",
    "truth run --policy randm": "unknown policy 'randm'; did you mean 'random'?",
    "truth run --gamma 2": "parameter gamma: expected float <= 1.0, received 2.0",
    "truth run --reward won": "unknown parameter reward 'won'. Known: reward, success, score",
    "truth run --rollouts 0": "parameter rollouts: expected int >= 1, received 0",
    "truth run --error 0": "parameter error: expected float > 0.0, received 0.0",
    "truth run --steps 0": "parameter steps: expected int >= 1, received 0",
    "truth run --processes 0 --out file": "processes: expected an integer of at least 1, received 0",
    "truth run --policy expert --out file": "unknown benchmark 'Doors'",
    "truth run --seed -1": "parameter seed: expected int >= 0, received -1",
    "verify": "Missing argument 'run'",
    "verify /no/run": "/no/run: no such run or file",
    "verify empty": "empty is not a run",
    "play --tasks 0": "--tasks: expected at least 1, received 0",
    "play HGPO/None-v0": "unknown environment 'HGPO/None-v0'",
    "play --out file": "--out file: expected a folder, received a file",
    "train": "expected a configuration",
    "train nothing": "unknown configuration or missing file 'nothing'",
    "train bad.toml": "bad.toml is not TOML",
    "train unknown.toml": "unknown setting 'updat'; did you mean 'update'?",
    "train wrong.toml": "setting update.epochs: expected int, received 'many'",
    "train tiny-alfworld --set update": "expected an override of the form section.field=value, received 'update'",
    "train tiny-alfworld --set update.epochs=0": "setting update.epochs: expected int >= 1, received 0",
    "train tiny-alfworld --out y/x --set model.path=/no/model": "/no/model",
    "train tiny-alfworld --out x --set environment.id=HGPO/None-v0": "unknown environment 'HGPO/None-v0'",
    "train tiny-alfworld --out x --set environment.options.splt=x": "unknown argument 'splt'; did you mean 'split'?",
    "train tiny-alfworld --out file": "file",
    "sft": "Missing argument 'steps'",
    "sft run": "Missing option '--out'",
    "sft run --out x --model /no/model": "/no/model",
    "sft run --out x --config /no.toml": "/no.toml",
    "sft run --out x --set update.epochs=x": "setting update.epochs: expected int, received 'x'",
    "quickstart --tasks 0 --out x": "tasks: expected at least 1, received 0",
    "quickstart --tasks x": "--tasks: expected an integer, received 'x'",
    "quickstart --out file": "file",
    "data fetchh": "No such command 'fetchh'; did you mean 'fetch'",
    "data fetch alfworld --out file": "file already exists",
    "data fetch webshop --from /no/folder --out x": "/no/folder",
    "data fetch appworld --into file --python /no/python": "file already exists",
    "data fetch appworld --into x --python /no/python": "cannot run /no/python",
    "data install appworld --into file": "file already exists",
    "data install appworld --into x --python /no/python": "cannot run /no/python: No such file or directory; name",
    "data synth appworld": "Missing option '--out'",
    "data synth appworld --out x --tasks 0 --python /no/python": "tasks: expected 1 to 10,000, received 0",
    "data synth appworld --out file --python /no/python": "file already exists",
    "data synth appworld --out x --python /no/python": "cannot run /no/python",
    "data build alfworld /no/folder --out x": "no ALFWorld data at /no/folder",
    "data build webshop --out x": "Missing option '--items'",
    "data show /no/run": "/no/run: no such",
    "data show webshop /no/catalogue": "no WebShop catalogue in /no/catalogue",
    "data export alfworld /no/pack --out x": "no ALFWorld data at /no/pack",
    "data export minari /no/run --name a-v0": "/no/run: no such",
    "data import verl-agent /no/file --out x": "/no/file: expected a JSONL file",
    "data import verl-agent file --out x": "file, line 1: not JSON",
}


@dataclasses.dataclass
class Required:
    level: int


def look(request: hgpo.Request) -> str:
    return "look"


def play(**arguments: object) -> object:
    small = {"env": DOORS, "policy": look, "out": "x", "tasks": 1, "group_size": 1, "max_steps": 2, "progress": False}
    return collect(**{**small, **arguments})


def add(rows: object) -> None:
    with StepWriter("existing") as writer:
        writer.add_group(rows)


def steps() -> pl.LazyFrame:
    return scan_steps("run")


ROW = {"task_id": "t", "trajectory": "x", "step": 0, "state": "s", "reward": 0.0}

CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "make split": (lambda: gymnasium.make(ALFWORLD, split="trian"), "unknown split 'trian'; did you mean 'train'?"),
    "make history_length": (lambda: gymnasium.make(ALFWORLD, history_length="2"), "at least 0, received '2'"),
    "make history_depth": (lambda: gymnasium.make(ALFWORLD, history_depth=1.5), "at least 0, received 1.5"),
    "make action_format": (lambda: gymnasium.make(ALFWORLD, action_format="json"), "unknown action_format 'json'"),
    "make max_steps": (lambda: gymnasium.make(ALFWORLD, max_steps=0), "expected an integer of at least 1, received 0"),
    "make sampling": (lambda: gymnasium.make(ALFWORLD, sampling="sorted"), "unknown sampling 'sorted'"),
    "make prompt_template": (lambda: gymnasium.make(ALFWORLD, prompt_template="/no"), "missing file '/no'"),
    "make prompt_template 3": (lambda: gymnasium.make(ALFWORLD, prompt_template=3), "the path of a file, received 3"),
    "make render_mode": (lambda: gymnasium.make(ALFWORLD, render_mode="rgb"), "unknown render_mode 'rgb'"),
    "make data": (lambda: gymnasium.make(ALFWORLD, data="/no"), "no ALFWorld data at /no"),
    "make backend": (lambda: gymnasium.make(ALFWORLD, backend="java"), "unknown backend 'java'"),
    "make argument": (lambda: gymnasium.make(ALFWORLD, splt="x"), "unknown argument 'splt'; did you mean 'split'?"),
    "make WebShop": (lambda: gymnasium.make(WEBSHOP, data="/no"), "no WebShop catalogue in /no"),
    "make_vec": (lambda: gymnasium.make_vec(ALFWORLD, num_envs=0), "num_envs: expected at least 1, received 0"),
    "reset task": (lambda: gymnasium.make(ALFWORLD).reset(options={"task": "none"}), "'none'"),
    "reset option": (lambda: gymnasium.make(ALFWORLD).reset(options={"tsk": "x"}), "unknown reset option 'tsk'"),
    "open_env id": (lambda: open_env("HGPO/No-v0"), "unknown environment 'HGPO/No-v0'"),
    "open_env 3": (lambda: open_env(3), "expected a Gymnasium id such as 'HGPO/ALFWorld-v0', received 3"),
    "writer path": (lambda: StepWriter(3), "expected the path of a run's folder, received int 3"),
    "writer file": (lambda: StepWriter("file"), "expected a folder, received the file"),
    "writer depth": (lambda: StepWriter("x", depth="deep"), "depth: expected 0 to 64, received 'deep'"),
    "writer without": (lambda: StepWriter("x", without=["promt"]), "unknown column or family 'promt'"),
    "writer config": (lambda: StepWriter("x", config={"a": object()}), "expected a configuration of JSON values"),
    "writer config list": (lambda: StepWriter("x", config=[1]), "expected a dictionary of JSON values, received [1]"),
    "writer run": (lambda: StepWriter("x", run=3), "run: expected the run's name as text, received 3"),
    "rows 3": (lambda: add(3), "expected rows (mappings) or a table, received int"),
    "rows unknown": (lambda: add([{**ROW, "stat": 1}]), "unknown step table column 'stat'; did you mean 'state'?"),
    "rows missing": (lambda: add([{"step": 0}]), "expected a column 'task_id'"),
    "rows type": (lambda: add([{**ROW, "step": "a"}]), "column step: expected Int32, received 'a'"),
    "rows twice": (lambda: add([ROW, ROW]), "expected complete trajectories with steps 0, 1, 2"),
    "scan None": (lambda: scan_steps(None), "the path or URL of a run or Parquet file, received NoneType None"),
    "scan list": (lambda: scan_steps([3]), "the path or URL of a run or Parquet file, received int 3"),
    "scan text": (lambda: scan_steps(""), "the path or URL of a run or Parquet file, received str ''"),
    "scan nothing": (lambda: scan_steps("/no"), "/no: no such"),
    "scan damaged": (lambda: scan_steps("run", damaged="x"), "unknown choice for damaged 'x'. Known: refuse, skip"),
    "verify nothing": (lambda: verify("/no"), "/no: no such run or file"),
    "verify 3": (lambda: verify(3), "expected the path of a run or file, received int 3"),
    "compute dict": (lambda: hgpo.compute({"a": 1}, "hgpo"), "expected a step table"),
    "compute path": (lambda: hgpo.compute("/no", "hgpo"), "/no: no such"),
    "compute estimator": (lambda: hgpo.compute(steps(), "hgppo"), "unknown estimator 'hgppo'; did you mean 'hgpo'?"),
    "compute 3": (lambda: hgpo.compute(steps(), 3), "estimator: expected a name, module:function, an Estimator"),
    "compute lambda": (lambda: hgpo.compute(steps(), lambda: 3), "a function of a LazyFrame, received <function"),
    "compute result": (
        lambda: hgpo.compute(steps(), lambda table: 3),
        "expected it to return a LazyFrame, received int",
    ),
    "compute no column": (
        lambda: hgpo.compute(steps(), lambda table: table),
        "to add a column 'advantage', received none",
    ),
    "compute parameter": (
        lambda: hgpo.compute(steps(), "hgpo", alfa=1),
        "unknown parameter 'alfa'; did you mean 'alpha'?",
    ),
    "compute gamma": (
        lambda: hgpo.compute(steps(), "hgpo", gamma="x"),
        "parameter gamma: expected float, received 'x'",
    ),
    "compute column": (lambda: hgpo.compute(steps(), "hgpo", column="reward"), "already has a column 'reward'"),
    "compute column 3": (lambda: hgpo.compute(steps(), "hgpo", column=3), "the name of the new column, received 3"),
    "compute without": (lambda: hgpo.compute(steps().drop("reward"), "hgpo"), "needs the column `reward`"),
    "compute text": (
        lambda: hgpo.compute(steps().with_columns(reward=pl.lit("x")), "hgpo"),
        "column reward: expected numbers, received String",
    ),
    "compute empty": (lambda: hgpo.compute(steps().head(0), "hgpo").collect(), "the step table has no rows"),
    "statistics None": (lambda: hgpo.statistics(None), "expected a step table"),
    "statistics by": (lambda: hgpo.statistics(steps(), by="kind"), "unknown column to split by 'kind'"),
    "statistics rows": (lambda: hgpo.statistics(steps(), chunk_rows=0), "at least 1, received 0"),
    "collect env": (lambda: play(env=3), "env: expected a Gymnasium id such as 'HGPO/ALFWorld-v0', received 3"),
    "collect open": (lambda: play(env=open_env(DOORS)), "env: expected an id together with max_steps"),
    "collect policy": (lambda: play(policy=None), "policy: expected a name such as 'random', a function"),
    "collect name": (lambda: play(policy="rndom"), "unknown policy 'rndom'; did you mean 'random'?"),
    "collect out": (lambda: play(out=3), "out: expected the path of a folder, received 3"),
    "collect out text": (lambda: play(out=""), "out: expected the path of a folder, received ''"),
    "collect tasks": (lambda: play(tasks=1.5), "tasks: expected an integer, received 1.5"),
    "collect group_size": (lambda: play(group_size=0), "group_size: expected at least 1, received 0"),
    "collect seed": (lambda: play(seed="x"), "seed: expected an integer, received 'x'"),
    "collect order": (lambda: play(order="x"), "unknown task order 'x'"),
    "collect dynamic": (lambda: play(dynamic="3"), "expected an integer, received '3'"),
    "collect slots": (lambda: play(slots=0), "slots: expected at least 1, received 0"),
    "collect workers": (lambda: play(workers="yes"), "workers: expected True or False, received 'yes'"),
    "collect max_failed": (lambda: play(max_failed="x"), "max_failed: expected a share from 0 to 1, received 'x'"),
    "collect without": (lambda: play(without=3), "without: expected names of columns, received 3"),
    "collect options": (lambda: play(policy_options={"a": 1}), "policy_options: expected none"),
    "collect options 3": (lambda: play(policy_options=3), "policy_options: expected a dictionary, received 3"),
    "collect split": (lambda: play(split="x"), "unknown split 'x'. Known: train, test, all"),
    "collect argument": (lambda: play(env=ALFWORLD, histry_length=2), "did you mean 'history_length'?"),
    "collect action_format": (lambda: play(action_format="x"), "unknown action_format 'x'"),
    "collect other run": (lambda: play(out="run", policy="random", seed=9), "was written with"),
    "build missing": (lambda: settings.build(Required, {}), "setting level: expected a value, received none"),
    "build type": (lambda: settings.build(Required, {"level": "x"}), "setting level: expected int, received 'x'"),
    "build unknown": (lambda: settings.build(Required, {"level": 1, "b": 1}), "unknown setting 'b'. Known: level"),
    "build list": (lambda: settings.build(Required, [1]), "expected a table of names and values, received [1]"),
    "read_toml": (lambda: settings.read_toml(Path("file")), "file is not TOML"),
    "load_config": (lambda: load_config("nope"), "unknown configuration or missing file 'nope'"),
    "load_config override": (lambda: load_config(None, ["a"]), "received 'a'"),
    "config": (lambda: Config(iterations="x"), "setting iterations: expected int, received 'x'"),
    "to_toml": (lambda: settings.to_toml(Required(object())), "a list or a table in a setting, received <object"),
    "spec outcome": (
        lambda: RolloutSpec(1, outcome="x"),
        "outcome: expected one of reward, success, score, received 'x'",
    ),
    "execution": (lambda: ExecutionOptions(worker_timeout_s="x"), "expected more than 0 seconds, received 'x'"),
    "make_policy": (
        lambda: make_policy(3, PolicyContext("Doors")),
        "policy: expected a name such as 'random', received 3",
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with sound and damaged inputs."""
    folder = tmp_path_factory.mktemp("inputs")
    collect(DOORS, "random", folder / "run", tasks=2, group_size=2, max_steps=5, progress=False)
    StepWriter(folder / "existing").close()
    (folder / "file").write_text("a list of goods\n")
    (folder / "empty").mkdir()
    (folder / "bad.toml").write_text("a = = 3\n")
    (folder / "unknown.toml").write_text("[updat]\nepochs = 1\n")
    (folder / "wrong.toml").write_text('[update]\nepochs = "many"\n')
    (folder / "bug.py").write_text("import nothing_there\n")
    (folder / "mine.py").write_text("number = 3\ndef three(a, b, c): ...\ndef positional(steps, scale): ...\n")
    pl.DataFrame({"a": [1]}).write_parquet(folder / "plain.parquet")
    return folder


@pytest.fixture
def unchanged(inputs, monkeypatch):
    """The inputs as the working directory, in which a wrong input must leave nothing."""
    monkeypatch.chdir(inputs)
    monkeypatch.syspath_prepend(str(inputs))
    for name in ("mine", "bug"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = listing(inputs)
    yield
    after = listing(inputs)
    for name in after - before:
        shutil.rmtree(inputs / name, ignore_errors=True)
    assert after == before


def listing(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return {name for name in found if "__pycache__" not in name and not name.endswith(".lock")}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_one_line(monkeypatch, capsys, line):
    monkeypatch.setattr(sys, "argv", ["hgpo", *shlex.split(line)])
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # restored: the command replaces them by redacted streams
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 2, shown.err
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert COMMANDS[line] in shown.err


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_one_line(name):
    call, expected = CALLS[name]
    with pytest.raises(hgpo.InputError) as caught:
        call()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_are_at_least_ninety():
    assert len(COMMANDS) >= 90
    assert len(CALLS) >= 60
