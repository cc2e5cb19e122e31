"""An estimator that reads a score: GRPO, weighted by the entropy of the response (docs/estimators.md).

hgpo train tiny-webshop --out runs/entropy --set advantage.estimator=examples.entropy_estimator:entropy_grpo
hgpo score RUN --model MODEL -s entropy && hgpo advantages RUN -e examples.entropy_estimator:entropy_grpo
"""

import polars as pl

from hgpo_train.advantages import estimator, grpo
from hgpo_train.advantages.windows import within


@estimator("entropy_grpo", reads=(), scores=("entropy",))
def entropy_grpo(steps: pl.LazyFrame, *, strength: float = 0.5) -> pl.LazyFrame:
    """Give more weight to steps at which the policy hesitated, relative to the task's mean."""
    steps = grpo.function(steps)
    hesitation = pl.col("entropy") / pl.col("entropy").mean().over(within())
    return steps.with_columns(
        advantage=pl.col("advantage") * (1 + strength * (hesitation - 1))
    )
