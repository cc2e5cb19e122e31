"""Write the results of an evaluation as a run: `python -m hgpo_verifiers RESULTS.jsonl RUN ENVIRONMENT`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from hgpo_envs.errors import InputError
from hgpo_verifiers.step_table import write_steps

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Write a run from ``results.jsonl``.

    Raises:
        InputError: The arguments or the file are wrong.
    """
    if len(arguments) != 3:
        raise InputError(f"expected RESULTS.jsonl RUN ENVIRONMENT, received {len(arguments)} arguments")
    results, folder, environment = arguments
    try:
        outputs = [orjson.loads(line) for line in Path(results).read_bytes().splitlines() if line]
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{results}: expected results.jsonl of verifiers ({error})") from None
    count = write_steps(outputs, folder, environment=environment)
    print(f"{count} steps are in {folder}. Next: hgpo stats {folder}, or hgpo advantages {folder}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
