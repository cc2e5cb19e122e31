"""The `hgpo` command, run inside a fork."""

import sys


class Traceback(Exception):
    """A command ended with an error that its user sees as a traceback."""


def hgpo(*arguments: object) -> None:
    """Run the command; raise SystemExit if it reports an error, and Traceback if it fails in any other way."""
    from hgpo_train.cli import main

    sys.argv = ["hgpo", *map(str, arguments)]
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise
    except BaseException as error:
        raise Traceback(
            f"{type(error).__name__}: {error}".replace("\n", " ")
        ) from error
