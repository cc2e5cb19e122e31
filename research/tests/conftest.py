"""Fixtures: the command line, recordings, and a small model for the texts of the house of doors."""

import pytest

from tests.conftest import hgpo, pytest_runtest_call, shared  # noqa: F401 - fixtures, and the limit of CPU time


@pytest.fixture(scope="session", autouse=True)
def _imported_libraries():
    import hgpo_train.rollout.run  # noqa: F401


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    import torch

    from hgpo_train.models.tiny import save_tiny
    from tests.training.conftest import SHAPE, texts

    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp("tiny"), texts() * 3, SHAPE, seed=1)


@pytest.fixture
def model(tiny):
    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.loading import load_model

    return load_model(ModelConfig(path=str(tiny), device="cpu", compute_dtype="float32", gradient_checkpointing=False))
