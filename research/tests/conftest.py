"""A small model for the texts of the house of doors. Without hgpo-research, no test runs."""

from importlib.metadata import entry_points

import pytest

collect_ignore_glob = (
    [] if "truth" in entry_points(group="hgpo.commands").names else ["*"]
)


@pytest.fixture(scope="session", autouse=True)
def _imported_research():
    import hgpo_train.rollout.run  # noqa: F401


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    import torch

    from hgpo_train.models.tiny import TinyShape, save_tiny
    from tests.training.conftest import texts

    torch.set_num_threads(1)
    shape = TinyShape(
        vocabulary=384,
        width=64,
        layers=2,
        heads=2,
        key_value_heads=1,
        intermediate=96,
    )
    return save_tiny(tmp_path_factory.mktemp("tiny"), texts() * 3, shape, seed=1)


@pytest.fixture
def model(tiny):
    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.loading import load_model

    return load_model(
        ModelConfig(
            path=str(tiny),
            device="cpu",
            compute_dtype="float32",
            gradient_checkpointing=False,
        )
    )
