"""What is measured on a GPU, run with a small model on the CPU: a wrong name would cost an hour of a card."""

import numpy as np
import pytest
from lazily import Lazy
from refusals import refused

from hgpo_train.training.config import load_config, replace

torch = Lazy("torch")
gpu_check = Lazy("hgpo_train.training.gpu_check")


@pytest.mark.slow
@pytest.mark.parametrize("configuration", ["alfworld-1.5b-hgpo-k2", "tiny-alfworld"])
def test_the_speed_of_an_update_is_measured_with_and_without_scoring(configuration):
    from benchmarks import update as benchmark

    model = gpu_check.small_model(torch.device("cpu"))
    samples = gpu_check.random_samples([60, 50, 40, 30])
    config = replace(load_config(configuration), model={"compute_dtype": "float32"})
    for variant in (benchmark.VARIANTS[0], benchmark.DEFAULT):
        speed = benchmark.ours(model, config, samples, variant)
        assert np.isfinite(speed.alone), speed.note
        with_scoring = float(speed.note.partition(" ")[0].replace(",", ""))
        assert 0 < with_scoring <= speed.alone + 0.5


@pytest.mark.slow
def test_what_is_missing_is_said_before_anything_is_measured(monkeypatch):
    from benchmarks import update as benchmark

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with refused("needs a GPU for 1.5 billion weights, and torch .*tiny-alfworld"):
        next(benchmark.run())
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    with refused("--rival needs TRL: pip install trl"):
        next(benchmark.run("tiny-alfworld", rival=True))
