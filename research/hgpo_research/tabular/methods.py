"""Where the advantages of an update come from: an estimator, the truth, or a mixture that adapts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.wording import listed
from hgpo_research.arrays import Floats
from hgpo_research.mixture import PARTNERS
from hgpo_research.tabular.adaptive import Adaptive
from hgpo_research.tabular.cross_validation import table_advantages
from hgpo_research.tabular.policy import TabularPolicy, Visits
from hgpo_research.tabular.rollouts import SCORES, step_table
from hgpo_research.tabular.values import true_advantages
from hgpo_train.advantages.variants import read_variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hgpo_train.advantages import Estimator

ORACLE: Final = "oracle"
"""The name of the true advantages of success (γ = 1)."""

ADAPTIVE: Final = "adaptive"
"""The name of the mixture of `PARTNERS`; with some of them, `adaptive:discounted_grpo+shrinkage_gae`."""

Method = Callable[[TabularPolicy, Visits, Sequence[int]], list[Floats]]
"""Returns the advantages of the rows of each task, of all seeds, from the policies, their rollouts with their choices,
and what random numbers depend on besides the seed."""


@dataclass(frozen=True)
class TableEstimator:
    """An estimator of the package, which computes the advantages of all seeds by one call."""

    estimator: Estimator

    def __call__(
        self,
        policy: TabularPolicy,
        visits: Visits,
        stream: Sequence[int],  # noqa: ARG002
    ) -> list[Floats]:
        """See `Method`."""
        return table_advantages(
            self.estimator,
            step_table(policy, visits.rollouts, scores=bool(self.estimator.scores)),
            visits.rollouts,
        )


@dataclass(frozen=True)
class Oracle:
    """True advantages: exact where a task's graph is small, else from `samples` further rollouts of each state."""

    samples: int

    def __call__(
        self, policy: TabularPolicy, visits: Visits, stream: Sequence[int]
    ) -> list[Floats]:
        """See `Method`."""
        return true_advantages(
            policy,
            visits.rollouts,
            gamma=1.0,
            samples=self.samples,
            stream=stream,
        )


def methods(
    texts: Iterable[str],
    settings: Sequence[str] = (),
    samples: int = 16,
) -> Mapping[str, Callable[[], Method]]:
    """Return methods by name: estimators as of `hgpo_train.advantages.variants.read_variants`, `ORACLE`, `ADAPTIVE`.

    Args:
        texts: Names with their parameters, as on the command line.
        settings: Parameters of all estimators that have them.
        samples: Number of rollouts of each of the oracle's values.

    Returns:
        Functions, because a method may remember what it has seen: each learning curve begins with a new one.

    Raises:
        InputError: An estimator or a parameter is unknown, an estimator is given twice, or reads a score that tabular
            policies do not have.
    """
    found: dict[str, Callable[[], Method]] = {}
    written = [
        name.strip() for text in texts for name in text.split(",") if name.strip()
    ]
    # Those that are no estimators of tables first.
    for name in written:
        first, _, partners = name.partition(":")
        if name == ORACLE:
            found[name] = partial(Oracle, samples)
        elif first == ADAPTIVE:
            found[name] = partial(
                Adaptive,
                _partners(
                    partners.split("+") if partners else list(PARTNERS),
                    settings,
                ),
            )
    # One call for all estimators: parameters of all are checked against all of them.
    estimators = [name for name in written if name not in found]
    for variant in read_variants(estimators, settings=settings) if estimators else ():
        missing = set(variant.estimator.scores).difference(SCORES)
        if missing:
            raise InputError(
                f"{variant.name} reads the score {missing.pop()}: expected an estimator of rewards, or of the scores "
                f"{listed(SCORES)}, which tabular policies have; measure {variant.name} with a language model"
            )
        found[variant.name] = partial(TableEstimator, variant.estimator)
    return {name: found[name] for name in written}


def _partners(names: Sequence[str], settings: Sequence[str]) -> dict[str, Estimator]:
    found = {}
    for name in names:
        if name not in PARTNERS:
            raise InputError(unknown("partner of adaptive", name, list(PARTNERS)))
        estimator, fixed = PARTNERS[name]
        (read,) = read_variants([estimator], settings=settings)
        found[name] = read.estimator.with_parameters(**fixed)
    return found
