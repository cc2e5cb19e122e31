"""Options of several commands, each declared once: annotations, and dataclasses whose fields are options.

The options of an episode have the meanings that `hgpo_envs.episode_options` gives them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from hgpo_train.field_docs import FieldSource, fields_in_source
from hgpo_train.rollout.failures import MAX_FAILED


def _episode_options() -> dict[str, FieldSource]:
    """Return meanings and defaults of the options of an episode, read without importing `hgpo_envs`."""
    package = find_spec("hgpo_envs")
    assert package is not None
    assert package.origin is not None
    return fields_in_source(
        Path(package.origin).with_name("episode_options.py").read_text(encoding="utf-8")
    )


_EPISODE: Final = _episode_options()

Env = Annotated[
    str, Parameter(help="Gymnasium id of the environment, or module:EnvironmentSpec.")
]
Split = Annotated[
    str, Parameter(help="Split of the tasks; 'all' includes every split.")
]
HistoryLength = Annotated[
    int | None, Parameter(help="{} Default: {}.".format(*_EPISODE["history_length"]))
]  # fmt: skip
MaxSteps = Annotated[
    int | None, Parameter(help=f"{_EPISODE['max_steps'].doc} Default: the environment's.")
]  # fmt: skip
EnvOption = Annotated[
    list[str] | None, Parameter(help="A keyword argument of the environment, name=value; may be repeated.")
]  # fmt: skip
PolicyOption = Annotated[
    list[str] | None,
    Parameter(help="An option of the policy, name=value; may be repeated."),
]
RunFolder = Annotated[Path, Parameter(help="The run's folder. A run in it is resumed.")]
SavedRun = Annotated[
    str,
    Parameter(
        help="A run, a folder of runs, a Parquet file (also your own), a quoted pattern, or a URL."
    ),
]
Processes = Annotated[
    PositiveInt, Parameter(help="Number of processes, which share the run's shards.")
]
Allow = Annotated[
    list[str] | None,
    Parameter(
        help="Code that files of the run may name, such as module:object; may be repeated."
    ),
]
Overwrite = Annotated[bool, Parameter(help="Replace what is there.")]
Json = Annotated[bool, Parameter("--json", help="Print JSON.")]
Overrides = Annotated[
    list[str] | None,
    Parameter(
        "--set",
        help="Override a setting: section.field=value; may be repeated.",
        metavar="A.B=C",
    ),
]
PrintConfig = Annotated[bool, Parameter(help="Print all settings and exit.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """The options of an environment. Those that are None have the environment's defaults."""

    split: str | None = None
    """Split of the tasks; 'all' includes every split. Default: train, and the one for evaluation in hgpo eval."""
    data: Path | None = None
    """Official folder, pack or catalogue. Default: the bundled data."""
    history_length: HistoryLength = None
    max_steps: MaxSteps = None
    env_option: EnvOption = None

    def arguments(self, **replaced: Any) -> dict[str, Any]:
        """Return the keyword arguments of the environment: options that are given, and ``name=value`` texts.

        Args:
            **replaced: Arguments that replace those of options.

        Raises:
            InputError: A text is not of the form ``name=value``, has the name of another option or of an argument of
                `collect`, or has no effect on rollouts.
        """
        from inspect import signature

        from hgpo_envs.errors import InputError
        from hgpo_train.rollout.collection import collect
        from hgpo_train.settings import read_assignments

        options = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name != "env_option"
        }
        options |= replaced
        assigned = read_assignments("--env-option", self.env_option or (), {})
        for name in assigned:
            if name in options:
                raise InputError(f"--env-option {name}: use --{name.replace('_', '-')}")
            if name in (*signature(collect).parameters, "render_mode", "sampling"):
                expected = (
                    "expected an argument of the environment, received one of rollouts"
                )
                raise InputError(f"--env-option {name}: {expected}")
        given = {name: value for name, value in options.items() if value is not None}
        texts = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in given.items()
        }
        return {**texts, **assigned}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EpisodeOptions(EnvironmentOptions):
    """The options of an environment whose actions come from a policy."""

    action_format: Annotated[
        str | None,
        Parameter(
            help=f"{_EPISODE['action_format'].doc} Default: command for a function of your own, else response."
        ),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """The options of a policy and of the execution of rollouts."""

    policy_option: PolicyOption = None
    slots: int | None = None
    """Number of concurrent environments. Default: 256, 32 for scripted policies."""
    workers: PositiveInt | None = None
    """Run so many environments, instead of --slots, each in its own process."""
    retry_failed: Annotated[bool, Parameter(negative="--no-retry-failed")] = True
    """Retry rollouts that failed in an earlier run of this command."""
    max_failed: float = MAX_FAILED
    """Exit with code 1 if more than this share of the rollouts failed."""

    def arguments(self, policy: str, **options: Any) -> dict[str, Any]:
        """Return the keyword arguments of `collect` and `evaluate` for a policy.

        Args:
            policy: The policy's name.
            **options: Options of the policy that `--policy-option` replaces.
        """
        from hgpo_train.policies.registry import find_policy
        from hgpo_train.settings import read_assignments

        texts = self.policy_option or ()
        types = find_policy(policy)[0].option_types if texts else {}
        given = read_assignments("--policy-option", texts, types)
        return {
            "policy_options": options | given,
            "slots": self.slots if self.workers is None else self.workers,
            "workers": self.workers is not None,
            "retry_failed": self.retry_failed,
            "max_failed": self.max_failed,
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ContextOptions:
    """The options of contexts and advantages. Those that are None have the estimator's defaults."""

    history_length: int | None = None
    """K, the number of past steps in the deepest context. Default: 2 for advantages of HGPO, 4 in hgpo stats."""
    context: str | None = None
    """Content of a context: states, or states_actions."""
    mode: str | None = None
    """Normalization in a group: mean_std_norm (by mean and std) or mean_norm."""
    reward_scale: float | None = None
    """Factor of rewards. Default: 10, as in verl-agent."""
    state_key: str | None = None
    """What of a state is compared instead of its text: mask-numbers, sort-lines, alfworld-nodes or module:function.
    Stored hashes are ignored."""

    def given(self, **more: Any) -> dict[str, Any]:
        """Return the options that are given, and those of `more` that are not None."""
        values = {each.name: getattr(self, each.name) for each in fields(self)} | more
        return {name: value for name, value in values.items() if value is not None}
