"""Commands where only some extras are installed: each runs, or one sentence names the extra to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rota.cli.main import MODULES
from tests.support.newcomer import Newcomer, modules_of

pytestmark = pytest.mark.thorough

NOWHERE = ("--url", "http://127.0.0.1:1")


def run(folder: Path, extras: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """`rota ARGUMENTS` where these extras are installed and no others."""
    newcomer = Newcomer(folder / "installed", extras)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **newcomer.environment}
    command = [sys.executable, "-m", "rota", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("installed", "arguments", "names"),
    [
        ((), ("--help",), "cli"),
        (("grpc",), ("groups", "list"), "cli"),
        (("cli",), ("db", "check", "--store", "sqlite:////nowhere/rota.db"), "store"),
        (("cli",), ("token", "list"), "store"),
        (("cli",), ("serve",), "server"),
        (("cli", "store"), ("serve", "--help"), "server"),
    ],
)
def test_a_command_names_the_extra_it_needs(
    tmp_path: Path, installed: tuple[str, ...], arguments: tuple[str, ...], names: str
) -> None:
    failed = run(tmp_path, installed, *arguments)

    said = rf"rota: this command needs the extra `{names}` \(\w+ is missing\): pip install 'rota\[{names}\]'\n"
    assert re.fullmatch(said, failed.stderr), failed.stderr
    assert (failed.returncode, failed.stdout) == (1, "")


@pytest.mark.parametrize(
    ("installed", "arguments", "exit_code"),
    [
        (("cli",), ("--version",), 0),
        (("cli",), ("groups", "list", *NOWHERE), 69),
        (("cli",), ("top", "--once", *NOWHERE), 69),
        (("cli",), ("doctor", *NOWHERE), 1),
        (("cli",), ("lead", "billing", "--wait", "0.1", *NOWHERE, "--", "true"), 69),
        (("cli",), ("sidecar", "--lead", "billing", "--probes", "off", "--http", "nowhere"), 2),
        (("store", "cli"), ("db", "check", "--store", "sqlite:////nowhere/rota.db"), 1),
        (("server",), ("serve", "--http", "nowhere"), 2),
        (("server",), ("auth", "check", "--access-file", "/nowhere"), 1),
        (("executor",), ("pipeline", "doctor", "--store", "sqlite:////nowhere/rota.db"), 1),
    ],
)
def test_a_command_runs_with_its_extra_alone(
    tmp_path: Path, installed: tuple[str, ...], arguments: tuple[str, ...], exit_code: int
) -> None:
    done = run(tmp_path, installed, *arguments)

    assert done.returncode == exit_code, done.stderr
    assert "needs the extra `" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("extra", MODULES)
def test_the_modules_of_an_extra_are_those_of_its_requirements(extra: str) -> None:
    asked = [Requirement(text) for text in requires("rota") or ()]
    of_extra = {each.name for each in asked if each.marker and each.marker.evaluate({"extra": extra})}
    own = of_extra - {"rota", "httpx", "msgspec"}

    known = {module for modules in MODULES.values() for module in modules}
    assert set(MODULES[extra]) <= modules_of(own)
    assert [name for name in own if not modules_of({name}) & known] == []
