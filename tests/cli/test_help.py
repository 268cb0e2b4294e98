"""The help as a terminal shows it, which what renders it may cut: defaults in brackets were lost to Rich's markup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rota.cli.commands import app

WIDE = {"COLUMNS": "2000", "TERMINAL_WIDTH": "2000"}


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and all below it, each with the words that name it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *path, name)


COMMANDS = dict(commands(typer.main.get_command(app)))


def rendered(path: tuple[str, ...]) -> str:
    shown = CliRunner().invoke(app, [*path, "--help"], env=WIDE)
    assert shown.exit_code == 0, shown.output
    return one_line(shown.output)


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.thorough
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_shows_all_that_the_source_says(path: tuple[str, ...]) -> None:
    shown, command = rendered(path), COMMANDS[path]

    said = [command.help or "", *(parameter.help or "" for parameter in command.params)]
    assert [text for text in said if one_line(text) not in shown] == []


@pytest.mark.parametrize(
    ("path", "default"),
    [
        (("serve",), "Default: 127.0.0.1:8080"),
        (("lead",), "default: 15000"),
        (("token", "create"), "[90d]"),
        ((), "default: the system's"),
    ],
)
def test_the_help_shows_defaults(path: tuple[str, ...], default: str) -> None:
    assert default in rendered(path)
