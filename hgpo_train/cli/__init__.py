"""The `hgpo` command.

Each command is one module, whose heavy imports are inside its functions: `hgpo --help` imports no NumPy, Polars,
Gymnasium or torch, and so nothing of `hgpo_envs` (tests/cli/test_imports.py).
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from hgpo_train.cli.redaction import RedactedStream, flush_streams


def main() -> None:
    """Run the command line; the entry point of the console script. Errors end it as in `hgpo_train.cli.exit_status`.

    All output has secrets removed: standard error from the start, because errors may repeat what the user typed, and
    standard output from the start of a command.
    """
    # Both standard streams become usable: a closed one discards its text, others print what they can encode. They
    # print each line at once, also into a pipe: a program that starts `hgpo view` waits for its address.
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # `>&-`; a file that is opened later must not take its place
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for the whole process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace", line_buffering=True)
    plain = sys.stderr
    sys.stderr = RedactedStream(plain)
    is_reported = False
    try:
        # here, so that Ctrl-C during its imports is one line, too
        from hgpo_train.cli.app import run

        run(sys.argv[1:])
    except KeyboardInterrupt:
        # redaction would import NumPy, which fails if the interruption came during its first import
        print("Interrupted.", file=plain)
        sys.exit(130)
    except SystemExit:
        raise
    except BrokenPipeError:  # the reader of the output, such as `| head`, has ended
        sys.exit(1)
    except BaseException as error:  # noqa: BLE001 - Polars' panics are no exceptions
        from hgpo_train.cli.exit_status import exit_with_error

        is_reported = True
        exit_with_error(error, sys.argv[1:])
    finally:
        if (failed := flush_streams()) is not None:
            # the first as of `| head`
            if not isinstance(failed, BrokenPipeError) and not is_reported:
                print(f"error: standard output: {failed.strerror}", file=sys.stderr)
            sys.exit(1)
    sys.exit(0)
