"""What vLLM's workers are taught (`worker_extension_cls`): to take new weights, tied output layers included."""

from __future__ import annotations

from typing import Any


class WeightUpdate:
    """Mixed into vLLM's worker class; called by `collective_rpc`."""

    reload_weights: Any  # the worker's own
    model_runner: Any

    def take_weights(self, weights_path: str) -> None:
        """Loads the weights in a folder into the running model.

        vLLM's own reload finds no weights for an output layer that is tied to the embedding, and leaves it with what
        it was prepared from (on a CPU a packed copy of the old ones): it is tied and prepared anew here.
        """
        self.reload_weights(weights_path=weights_path)
        model = self.model_runner.model
        head = getattr(model, "lm_head", None)
        embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
        if head is None or embedding is None or head is embedding or not model.config.tie_word_embeddings:
            return
        head.tie_weights(embedding)
        head.quant_method.process_weights_after_loading(head)
