"""`--yes`: destructive commands ask at a terminal, and fail without one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rota.cli.exits import CommandFailed, Exit

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")]


def confirm(question: str, *, yes: bool) -> None:
    """Return if `--yes` was given or the user answers yes; otherwise end the command without a change."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} There is no terminal: pass --yes to confirm", Exit.USAGE)
    if not typer.confirm(question, err=True):
        raise CommandFailed("nothing was changed")
