"""`hgpo` as its user runs it, inside a fork."""

import sys


class Traceback(Exception):
    """A command ended with something that its user sees as a traceback."""


def hgpo(*arguments: object) -> None:
    """Runs the command; raises SystemExit where it fails in good order, and Traceback where it does not."""
    from hgpo_train.cli import main

    sys.argv = ["hgpo", *map(str, arguments)]
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise
    except BaseException as error:
        raise Traceback(f"{type(error).__name__}: {error}".replace("\n", " ")) from error
