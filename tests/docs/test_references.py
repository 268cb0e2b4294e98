"""The generated references are what the code would write today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_origin

import typer

import rota.client
from docs.defaults_table import defaults_table
from rota.cli.commands import app
from rota.client.events import MemberEvent
from rota.server.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = DOCS / "generate.py"
STATED_TIME = re.compile(r"`(?P<name>[a-z_]+?)(_ms)?` \((?P<seconds>\d+) s\b")
"""A default time that a page written by hand states: `session_timeout` (10 s ...)."""


def test_the_generated_references_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr


def test_the_references_events_are_exported_events_of_members() -> None:
    """One name for one thing: `rota.client.NAME` is the class whose objects `member.events()` gives."""
    reported = (DOCS / "reference" / "sdk.md").read_text().partition("## Events of members")[2].partition("\n## ")[0]
    kinds = {(get_origin(kind) or kind).__name__: get_origin(kind) or kind for kind in get_args(MemberEvent)}

    assert re.findall(r"^- `(\w+)\(", reported, re.MULTILINE) == [
        name for name in re.findall(r"^- `(\w+)\(", reported, re.MULTILINE) if name in kinds
    ]
    assert {name: getattr(rota.client, name, None) for name in kinds} == kinds


def test_the_times_that_pages_state_are_the_defaults() -> None:
    defaults = {row.name.lower().removesuffix("_ms"): row.value_ms for row in defaults_table()}
    stated = [
        (page.name, found["name"], int(found["seconds"]) * 1000)
        for page in sorted(DOCS.rglob("*.md"))
        if page.parent.name != "reference"
        for found in STATED_TIME.finditer(page.read_text())
    ]

    assert [each for each in stated if defaults.get(each[1]) != each[2]] == []
    assert any(page == "migrate-from-kafka.md" for page, _, _ in stated)


def test_every_setting_is_an_option_of_rota_serve() -> None:
    """But the bounds of the protocol and the budgets, which come by the environment only."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]

    assert {option.name for option in command.params} == set(Settings.model_fields) - {"limits", "budgets"}
    assert {option.name: option.help for option in command.params if not option.help} == {}
