"""An extension of vLLM's workers (`worker_extension_cls`) that loads new weights, including tied output layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class WeightUpdate:
    """A mixin that vLLM adds to its worker class. `collective_rpc` calls its methods."""

    reload_weights: Any  # a method of the worker
    model_runner: Any

    def take_weights(self, handle: Mapping[str, Any]) -> None:
        """Load the weights that the trainer shares into the running model.

        vLLM's `reload_weights` finds no weights for an output layer that is tied to the embedding. The layer then keeps
        its processed copy of the old weights (on a CPU, a packed one). This method ties and processes it again.

        Args:
            handle: What `hgpo_train.policies.weight_handover.shared` yielded.
        """
        import torch

        from hgpo_train.policies.weight_handover import opened

        self.reload_weights(weights_iterator=iter(opened(handle).items()))
        self._tie_output_layer()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # the trainer may change its tensors once this method has returned

    def _tie_output_layer(self) -> None:
        model = self.model_runner.model
        head = getattr(model, "lm_head", None)
        embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
        if head is None or embedding is None or head is embedding or not model.config.tie_word_embeddings:
            return
        head.tie_weights(embedding)
        head.quant_method.process_weights_after_loading(head)
