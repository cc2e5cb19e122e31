"""The panel: what an evaluation fixes besides the policy, and the digest that identifies it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from hgpo_envs.errors import InputError, unknown
from hgpo_train.settings import PositiveInt, Settings, Temperature, types_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Sha256 = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")]
Seed = Annotated[int, Meta(ge=0, lt=1 << 31)]
NotEmpty: Final = Meta(min_length=1)

REQUIRED: Final = (
    "env",
    "split",
    "action_format",
    "history_length",
    "max_steps",
    "prompt_style",
    "system_prompt",
)
"""The environment's arguments that every panel writes out; further ones depend on the benchmark."""

_FIXED: Final = (
    "name",
    "version",
    "about",
    "environment",
    "prompt_hash",
    "tasks",
    "checksum",
    "files",
    "data",
)
"""Settings that no override changes: another panel has others."""


@dataclass(frozen=True, kw_only=True)
class Panel(Settings):
    """Everything of an evaluation that is not the policy.

    Raises:
        InputError: A value is not valid, or the environment lacks one of `REQUIRED`.
    """

    name: Name
    """The name: lower-case words joined by hyphens."""
    version: PositiveInt
    """The version. A panel whose numbers could differ gets another one."""
    about: str = ""
    """What the panel is, in a line or two; it is not part of the identity."""
    environment: dict[str, Any]
    """The environment as keyword arguments of `hgpo_train.evaluation.evaluate`: `env` (the id), `split`, and all
    options of the benchmark and of its episodes."""
    prompt_hash: str
    """The hash of the prompt template (`hgpo_envs.prompts.PromptTemplate.fingerprint`)."""
    tasks: Annotated[tuple[str, ...], NotEmpty]
    """The ids of the tasks in the order in which they are played."""
    checksum: Sha256 = ""
    """SHA-256 of the tasks (`hgpo_train.panels.data.task_checksum`); empty if they are not pinned."""
    files: dict[str, Sha256] = field(default_factory=dict)
    """SHA-256 of the files that the data were made from, by name, as far as they are known."""
    data: str = ""
    """The command that gets the data; empty for the data that are bundled."""
    seeds: Annotated[tuple[Seed, ...], NotEmpty]
    """The seeds; every task is played once for each."""
    temperature: Temperature
    """A model's sampling temperature."""
    max_prompt_tokens: PositiveInt
    """The longest prompt of a model, in tokens."""
    max_response_tokens: PositiveInt
    """The longest response of a model, in tokens."""
    success: Literal["won"] = "won"
    """What counts as success: the benchmark says that the task is solved. Reaching the step limit is none."""
    failed: Literal["excluded"] = "excluded"
    """How rollouts count that failed for a reason outside of the task: they are excluded from the success, which is
    reported with its bounds if all of them were lost or won."""
    base: ClassVar[Panel | None] = None
    """The panel of which an instance overrides settings; no setting itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in REQUIRED:
            if name not in self.environment:
                raise InputError(
                    f"panel {self.id}: expected environment.{name}, received none; write it out"
                )
        for name in ("env", "split"):
            if not isinstance(self.environment[name], str):
                raise InputError(
                    f"panel {self.id}: expected a text as environment.{name}, received {self.environment[name]!r}"
                )
        for name, values in (("tasks", self.tasks), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise InputError(
                    f"panel {self.id}: expected distinct {name}, received one of them twice"
                )

    @property
    def id(self) -> str:
        """The name with the version, without overrides, such as ``alfworld-unseen@1``."""
        return f"{self.name}@{self.version}"

    @property
    def title(self) -> str:
        """The name as results print it, with overrides, such as ``alfworld-unseen@1+temperature=0.7``."""
        if self.base is None:
            return self.id
        before = self.base.flat()
        changed = [
            (name, value)
            for name, value in self.flat().items()
            if value != before.get(name)
        ]
        return self.id + "".join(
            [f"+{name}={_text(value)}" for name, value in sorted(changed)]
        )

    @property
    def digest(self) -> str:
        """The identity: SHA-256 of the canonical form's JSON, in hexadecimal digits."""
        text = json.dumps(
            self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_pinned(self) -> bool:
        """Whether the data are compared with a checksum."""
        return bool(self.checksum or self.files)

    def canonical(self) -> dict[str, Any]:
        """Return everything that decides what is played, as JSON values."""
        values = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name != "about"
        }
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    def flat(self) -> dict[str, Any]:
        """Return the canonical form with the environment's arguments beside the other settings."""
        values = self.canonical()
        return {**values.pop("environment"), **values}

    def with_overrides(self, overrides: Mapping[str, Any]) -> Panel:
        """Return the panel with other settings, which are part of its title and change its digest.

        Args:
            overrides: Values by the name of a setting or of an argument of the environment.

        Raises:
            InputError: A name is unknown or is part of the panel's identity, or a value is not valid.
        """
        own = [name for name in types_of(Panel) if name not in _FIXED]
        for name in overrides:
            if name not in own and (name not in self.environment or name == "env"):
                known = [*own, *[name for name in self.environment if name != "env"]]
                raise InputError(
                    unknown(f"setting of {self.id} to override", name, known, limit=99)
                )
        arguments = {
            name: value for name, value in overrides.items() if name in self.environment
        }
        others = {name: value for name, value in overrides.items() if name in own}
        changed = replace(self, environment=self.environment | arguments, **others)
        if changed.canonical() == self.canonical():
            return self
        object.__setattr__(changed, "base", self.base or self)
        return changed


def _text(value: object) -> str:
    """Return a value as an override is written: texts without quotes, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
