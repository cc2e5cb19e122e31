"""What a model says of a response, computed from all logits of one row at a time."""

from lazily import Lazy

torch = Lazy("torch")


def of_response(model, prompt, response, temperature=1.0):
    """Return log softmax(logits / temperature) at each token of a response, in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits
    return (logits[0, len(prompt) - 1 : -1].double() / temperature).log_softmax(-1)
