"""Names of a benchmark's wordings, and prompts that are written for another wording than that of the tasks.

Versions of a benchmark may say the same with other words: ALFWorld's ``put mug 1 in/on shelf 1`` became ``move mug 1 to
shelf 1``. A policy that is shown the wrong command fails, so commands name the wording of the tasks that they play, and
an environment warns of a prompt for another one. What there is to know is data of the benchmark's specification
(`EnvironmentSpec.wordings`).
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hgpo_envs.environment_spec import environment_spec, spec_named
from hgpo_envs.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Wording:
    """One of the wordings of a benchmark.

    Attributes:
        words: What commands print, such as ``move … to … (alfworld 0.4 and later)``.
        phrase: A regular expression of what only prompts for this wording say, whatever the case of letters.
    """

    words: str
    phrase: str


def wording_of(env_id: str, versions: Mapping[str, str]) -> str:
    """Return the wording of a task in plain words; empty if its benchmark has none, or is not installed.

    Args:
        env_id: The Gymnasium id.
        versions: `hgpo_envs.engine.Task.versions`, which step tables keep in the column `env_version`.

    >>> wording_of("HGPO/ALFWorld-v0", {"grammar": "put"})
    'put … in/on … (alfworld 0.3 and before)'
    """
    try:
        spec = environment_spec(env_id)
    except InputError:
        return ""
    known = [spec.wordings.get(f"{name}={value}") for name, value in versions.items()]
    return ", ".join([wording.words for wording in known if wording is not None])


def warn_of_other_wordings(
    benchmark: str, versions: Mapping[str, str], texts: Mapping[str, str]
) -> None:
    """Warn of texts for a policy that are written for another wording than that of a task.

    Args:
        benchmark: The benchmark's name.
        versions: The task's versions.
        texts: The texts by what they are called, such as ``the system prompt``. There is one warning for each of
            them and each other wording.
    """
    spec = spec_named(benchmark)
    played = "" if spec is None else wording_of(spec.id, versions)
    if spec is None or not played:
        return
    for where, text in texts.items():
        for argument, wording in spec.wordings.items():
            found = re.search(wording.phrase, text, re.IGNORECASE)
            if found and wording.words != played:
                name, value = argument.split("=")
                warnings.warn(
                    f'{where} says "{one_line(found[0])}", but the wording of these tasks is {played}; '
                    f'play them with {name}="{value}" (--env-option {argument}), or change the text',
                    stacklevel=2,
                )
