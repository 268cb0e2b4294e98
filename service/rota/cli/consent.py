"""`--yes`: commands that take something away ask at a terminal, and refuse where there is none to ask at."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rota.cli.exits import CommandFailed, Exit

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")]


def confirm(question: str, *, yes: bool) -> None:
    """Return where `--yes` was given or the user answers yes; otherwise end the command, which has changed nothing."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} There is no terminal: pass --yes to confirm", Exit.USAGE)
    if not typer.confirm(question, err=True):
        raise CommandFailed("nothing was changed")
