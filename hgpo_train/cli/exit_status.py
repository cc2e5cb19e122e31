"""The output and the exit status of a command that failed."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cyclopts import (
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from hgpo_envs.errors import InputError, ProcessError, nearest
from hgpo_train.rollout.failures import RolloutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

DISTRIBUTIONS: Final = {"PIL": "pillow", "vl_convert": "vl-convert-python"}
"""The distributions of modules with another name."""


def exit_with_error(error: BaseException, words: Sequence[str] = ()) -> NoReturn:
    """Print an error and exit.

    A wrong command line, bad input, or an extra that is missing, is one line and exit code 2. A run that failed,
    processes that were killed, a damaged file, or a disk that refused to read or write, is one line and exit code 1.
    Anything else is a fault of the program: a traceback and exit code 1.

    Args:
        error: The error.
        words: The command line.
    """
    if isinstance(error, InputError):
        _fail(error, _with_option(str(error), words), 2)
    if isinstance(error, CycloptsError):
        command = " ".join(("hgpo", *(error.command_chain or ())))
        message = _usage_message(error)
        see = " See" if message.endswith("?") else "; see"
        _fail(error, f"{message}{see} {command} --help", 2)
    if isinstance(error, RolloutError | ProcessError):
        _fail(error, str(error), 1)
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")):
        from hgpo_envs.plugins import install_command

        _fail(error, f"this needs {error.name}: {install_command(extra)}", 2)
    polars: Any = sys.modules.get("polars")
    if polars and isinstance(
        error, polars.exceptions.ComputeError | polars.exceptions.PanicException
    ):
        _fail(
            error,
            f"a step table cannot be read: {error}; `hgpo verify` finds the damaged file",
            1,
        )
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        hint = "use fewer --slots or --processes, or raise the limits (ulimit -u, ulimit -v)"
        _fail(
            error,
            f"the system refused {'memory' if isinstance(error, MemoryError) else 'a thread'}; {hint}",
            1,
        )
    if isinstance(error, OSError) and error.errno in _HINTS:
        path = (
            f"{os.fsdecode(error.filename)}: "
            if isinstance(error.filename, str | bytes)
            else ""
        )
        message = f"{path}{os.strerror(error.errno)}; {_HINTS[error.errno]}"
        _fail(error, message, 2 if error.errno in _WRONG_PATH else 1)
    if error.args and isinstance(error.args[0], str):  # Polars adds the whole query
        message = error.args[0].partition(
            "\n\nThis error occurred in the following expression"
        )[0]
        error.args = (message, *error.args[1:])
    print(
        "".join(traceback.format_exception(type(error), error, _user_frames(error))),
        file=sys.stderr,
        end="",
    )
    sys.exit(1)


def _with_option(message: str, words: Sequence[str]) -> str:
    """Return a message that begins with the name of an argument, with the option that the user typed instead."""
    name, colon, rest = re.sub("^(setting|parameter) ", "", message).partition(":")
    option = f"--{name.replace('_', '-')}"
    typed = [word.partition("=")[0] for word in words]
    return f"{option}{colon}{rest}" if option in typed else message


def _usage_message(error: CycloptsError) -> str:
    """Return what is wrong with a command line, without the list of all commands."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"unexpected argument {error.unused_tokens[0]!r}"
    if isinstance(error, MissingArgumentError) and error.keyword is None:
        # A misspelt option is reported as the argument that it was meant to be.
        options = [word for word in error.unused_tokens or () if word[:1] == "-"]
        if options:
            return _unknown_option(options[0].partition("=")[0], _meanings(error))
        return _missing(error, _meanings(error))
    if isinstance(error, UnknownOptionError) and error.token.keyword:
        return _unknown_option(error.token.keyword, _meanings(error))
    return str(error).partition(" Available commands:")[0].rstrip(".")


def _meanings(error: CycloptsError) -> dict[str, str]:
    """Return the arguments of the command with an error, and what `--help` says about them."""
    assert error.app is not None
    known = error.app.assemble_argument_collection(parse_docstring=True)
    return {each.name: each.parameter.help or "" for each in known}


def _missing(error: MissingArgumentError, meanings: Mapping[str, str]) -> str:
    """Return that an argument is missing, what it is, and an example of a folder."""
    assert error.argument is not None
    command = error.command_chain or ("hgpo",)
    name = error.argument.name
    meaning = meanings.get(name, "").rstrip(".")
    examples = {"--out": f"--out runs/{command[-1]}", "RUN": "runs/quickstart/run"}
    example = f"; for example {examples[name]}" if name in examples else ""
    return f"{name} is missing: {meaning}{example}"


def _unknown_option(option: str, meanings: Mapping[str, str]) -> str:
    """Return that an option is unknown, with the closest one, or else the first whose meaning has the word."""
    word = option.lstrip("-")
    near = nearest(word, [name.lstrip("-") for name in meanings if name[:1] == "-"])
    explained = [
        name.lstrip("-")
        for name, meaning in meanings.items()
        if re.search(rf"\b{re.escape(word)}\b", meaning)
    ]
    meant = [near] if near else explained
    hint = f" Did you mean --{meant[0]}?" if meant else ""
    return f"Unknown option: {option}.{hint}".removesuffix(".")


def extra_of(module: str) -> str | None:
    """Return the extra of this distribution that installs a module; None if none does."""
    from importlib.metadata import PackageNotFoundError, requires

    name = DISTRIBUTIONS.get(module, module)
    try:
        requirements = requires("hgpo") or ()
    except PackageNotFoundError:  # run from a checkout
        return None
    for requirement in requirements:
        match = re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", requirement)
        if match and match[1].lower() == name and match[2] not in ("dev", "docs"):
            return match[2]
    return None


def _fail(error: BaseException, message: str, code: int) -> NoReturn:
    """Print an error in one line, and its notes: for example, how many groups could not be committed."""
    for text in (f"error: {message}", *getattr(error, "__notes__", ())):
        with suppress(OSError):  # of standard error itself
            print(" ".join(text.split()), file=sys.stderr)
    sys.exit(code)


def _user_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback from the user's own policy or estimator on, if it raised the error; otherwise the whole."""
    first = frames = error.__traceback__
    callers = [
        f"hgpo_train{os.sep}{part}"
        for part in (f"policies{os.sep}", f"advantages{os.sep}registry.py")
    ]
    while frames is not None:
        path = frames.tb_frame.f_code.co_filename
        if any(caller in path for caller in callers) and frames.tb_next is not None:
            first = frames.tb_next
        frames = frames.tb_next
    return first


_WRONG_PATH: Final = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
_HINTS: Final = {
    **dict.fromkeys(_WRONG_PATH, "choose another path"),
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        "free some space; the same command continues from what is committed (hgpo train: with --resume)",
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE), "use fewer --slots, or raise `ulimit -n`"
    ),
    **dict.fromkeys(
        (errno.EAGAIN, errno.ENOMEM),
        "use fewer --slots or --processes, or raise the limits (ulimit)",
    ),
    errno.EXDEV: "its folder is on another file system than the file that is written; choose another path",
    **dict.fromkeys(
        (errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE),
        "check the disk and its permissions, or write to another place",
    ),
}
"""What a user can do about an error of the operating system."""
