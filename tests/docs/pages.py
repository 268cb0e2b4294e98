"""The fenced blocks of the documentation, and how a reader would run them.

The first word behind the fence is the language. `sh` and `python` run, in the order of the page; `text output` is what
the block before has printed, line by line, with … for what differs each time. `json`, `toml` and `yaml` have to parse.
What else there is says so: `text`, `sql`, `mermaid` and the like are for people.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml

from rota.cli.commands import app
from tests.support.ports import free_port
from tests.support.processes import rota_command

ROOT = Path(__file__).parents[2]
DOCUMENTED_ADDRESS = "127.0.0.1:8080"
DOCUMENTED_SIDECAR = "127.0.0.1:4040"
DOCUMENTED_STORE = "postgresql://localhost/rota"
TIMEOUT_S = 120

RUN = {"sh", "python"}
PARSED: Mapping[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
FOR_PEOPLE = {"", "text", "sql", "mermaid", "markdown", "nginx", "ini", "promql", "{toctree}"}

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    more: str
    """What stands behind the language."""
    text: str

    @property
    def is_output(self) -> bool:
        return (self.language, self.more) == ("text", "output")

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in their order."""
    written = page.read_text()
    for found in _BLOCK.finditer(written):
        language, _, more = found["info"].strip().partition(" ")
        line = written.count("\n", 0, found.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, language, more.strip(), found["text"])


def check_page(page: Path, url: str, path: str, folder: Path, store: str = "") -> str:
    """Run commands, compare their output, parse data; returns all that was printed."""
    printed, last = "", ""
    sidecar = f"127.0.0.1:{free_port()}"
    replaced = {
        DOCUMENTED_ADDRESS: url.rpartition("/")[2],
        DOCUMENTED_SIDECAR: sidecar,
        DOCUMENTED_STORE: store or DOCUMENTED_STORE,
    }
    environment = {"ROTA_URL": url, "ROTA_SIDECAR_HTTP": sidecar, "PATH": f"{rota_command().parent}:{path}"}
    for block in blocks_of(page):
        if block.language in RUN:
            last = run(block, replaced, environment, folder)
            printed += last
        elif block.is_output:
            compare(block, last)
        elif block.language in PARSED:
            PARSED[block.language](block.text)
        else:
            assert block.language in FOR_PEOPLE, f"{block.where} is {block.language}: nobody knows what to do"
    return printed


def run(block: Block, replaced: Mapping[str, str], environment: Mapping[str, str], folder: Path) -> str:
    """What a block has printed, which must have ended well."""
    text = block.text
    for documented, here in replaced.items():
        text = text.replace(documented, here)
    command = ["bash", "-euo", "pipefail", "-c", text] if block.language == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}\n{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def commands_of(block: Block) -> Iterator[list[str]]:
    """The words of each `rota …` that a block runs or shows."""
    for line in block.text.replace("\\\n", " ").splitlines():
        found = re.match(r"\s*(?:until |while |! )?rota ((?:[^#&|;<>'\"$]|'[^']*'|\"[^\"]*\")*)", line)
        if found is not None:
            yield shlex.split(found[1])


def unknown_words(words: Sequence[str]) -> list[str]:
    """Commands and options of the command line that there are not."""
    command: Any = _command_line()
    rest = list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name in _options(command):
            rest.pop(0)
        elif name not in command.commands:
            return [name]
        else:
            command = command.commands[name]
    given = [word.partition("=")[0] for word in rest[: rest.index("--") if "--" in rest else None]]
    return [word for word in given if word.startswith("--") and word not in {*_options(command), "--help"}]


@cache
def _command_line() -> Any:
    return typer.main.get_command(app)


def _options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def compare(block: Block, printed: str) -> None:
    """Fail where a line of this block has not been printed."""
    for line in block.text.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert re.search(pattern, printed), f"{block.where}: no line like {line!r} in\n{printed}"
