"""A process that is killed while it saves a checkpoint leaves valid checkpoints."""

import subprocess
import sys

import pytest
from nightly import sample_or_all

from hgpo_envs.files.atomic import remove_abandoned, scratch_folders
from hgpo_train.models.checkpoint_files import list_checkpoints, verify_checkpoint

SAVING = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from hgpo_train.training.checkpoint import save_checkpoint
from hgpo_train.models.checkpoint_files import TrainingState
from hgpo_train.training.config import CheckpointConfig, OptimiserConfig
from hgpo_train.models.loading import load_tokenizer
from hgpo_train.training.update.optimiser import make_optimiser
from transformers import AutoModelForCausalLM

place, start, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
tokenizer = load_tokenizer(start)
model = AutoModelForCausalLM.from_pretrained(start)
optimiser = make_optimiser(model, OptimiserConfig(learning_rate=0.01))
left = None

def count(event, arguments):
    global left
    if left is not None and event.startswith(("os.", "open", "shutil.")) and str(folder) in repr(arguments):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

def save(*iterations):
    for iteration in iterations:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        save_checkpoint(folder, TrainingState(iteration), model, tokenizer, optimiser, CheckpointConfig(keep=2))

sys.addaudithook(count)
at = 0
while True:
    folder = place / str(at)
    child = os.fork()
    if not child:
        save(1, 2, 3)
        left = at
        save(last)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    at += int(sys.argv[4])
"""


@pytest.mark.slow
@pytest.mark.parametrize("last", [3, 4], ids=["the same iteration", "the next iteration"])
def test_killing_the_process_during_a_save_leaves_valid_checkpoints(tiny, tmp_path, last):
    """Each process saves iterations 1 to 3 and is killed at the n-th system call of a further save."""
    every = sample_or_all(4, 1)
    command = [sys.executable, "-c", SAVING, str(tmp_path), str(tiny), str(last), str(every)]
    subprocess.run(command, check=True, timeout=500)
    folders = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert len(folders) > 20 / every
    for folder in folders:
        remove_abandoned(folder)
        assert not scratch_folders(folder)
        names = [path.name for path in list_checkpoints(folder)]
        allowed = [["000002", "000003"], ["000002", "000003", "000004"], ["000003", "000004"]]
        assert names in (allowed[:1] if last == 3 else allowed), folder.name
        assert all(verify_checkpoint(path).ok for path in list_checkpoints(folder)), folder.name
        assert sorted(path.name for path in folder.iterdir()) == names
