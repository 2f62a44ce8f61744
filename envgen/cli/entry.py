"""How the command starts and ends. Exit codes: 0 done, 1 a check failed, 2 wrong input (one line on stderr),
130 interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from envgen.cli.app import app

# newer versions of typer carry their own copy of click, older ones import click: this is the class in both
_UsageProblem: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _fail(message: object) -> NoReturn:
    text = " ".join(str(message).split())
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def _expected_errors() -> tuple[type[Exception], ...]:
    """Called only once something was raised, so that starting up stays free of pydantic."""
    from envgen.errors import EnvgenError

    return (EnvgenError, OSError)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line and exits the process.

    Expected errors are one line on stderr and code 2; defects keep their traceback.
    """
    try:
        code = app(args=None if argv is None else list(argv), standalone_mode=False)
    except _UsageProblem as error:
        shown = getattr(error, "format_message", error.__str__)()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(shown)
            sys.exit(2)
        _fail(shown)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
        sys.exit(1)
    except _expected_errors() as error:
        _fail(error)
    if code == 130:  # typer turns Ctrl-C into this code without a word
        print("error: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
