"""Generate the bundled catalogue of WebShop from synthetic products."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

PRODUCTS: Final = 1_200


SEED: Final = 233


HUMAN_INSTRUCTIONS: Final = 2.0
"""Human-style instructions per product, enough for the published splits (test 500, eval 1,000, train the rest)."""


def make_bundled_catalogue(out: Path, *, seed: int = SEED) -> dict[str, Any]:
    """Generate synthetic raw files and build the bundled catalogue from them.

    Args:
        out: The catalogue's folder.
        seed: Any integer. Other seeds give other products and goals of the same kinds.

    Returns:
        The manifest.
    """
    from hgpo_envs.webshop.data.build import build
    from hgpo_envs.webshop.generation.synthetic import FILES, write_synthetic

    with tempfile.TemporaryDirectory() as made:
        raw = Path(made) / "raw"
        write_synthetic(raw, PRODUCTS, seed, text=0.6, people=HUMAN_INSTRUCTIONS)
        items, attributes, human = (raw / name for name in FILES)
        return build(items, attributes, human, out, nouns="stand-in", compress=True)
