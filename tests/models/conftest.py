"""The heavy libraries are imported before the first test, so that no test's CPU time contains them."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _imported():
    import torch
    from transformers import Qwen2ForCausalLM, Qwen3ForCausalLM  # noqa: F401

    torch.set_num_threads(1)
