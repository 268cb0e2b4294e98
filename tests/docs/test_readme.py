"""The README's code blocks run, in their order, against one server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rota.protocol.fencing_token import fencing_token
from tests.docs.conftest import Reader
from tests.support.curl import put_curl_on_path
from tests.support.newcomer import Newcomer
from tests.support.ports import free_port

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PIPELINE = README[README.index("## Why did it rebalance?") : README.index("## Running it")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTED_URL = "http://127.0.0.1:8080"
DOCUMENTED_SIDECAR = "127.0.0.1:4040"
BIN = Path(sys.executable).parent
SCREEN_LINES, WINDOW_LINES = 24, 40


@pytest.mark.thorough
def test_every_block_does_what_the_text_says(reader: Reader, tmp_path: Path) -> None:
    path = f"{put_curl_on_path(tmp_path)}:{os.environ['PATH']}"
    newcomer = Newcomer(tmp_path / "installed", ("server", "cli"))
    printed = "".join(
        _run(language, text, reader.url, path, newcomer.environment)
        for language, text in BLOCK.findall(README.replace(PIPELINE, ""))
    )

    assert "every file was counted exactly once" in printed
    assert f"leading with token {fencing_token(1)}" in printed
    assert printed.count("mine: documents") == 12
    assert re.search(r"leading with fencing token \d+\n", printed)
    assert "my pages: 0 1 2 3\n" in printed
    assert re.search(r'"state":"leader".*"fencing_token":\d+', printed)
    assert re.search(r'"leader_id":"host-1-[0-9a-f-]+"', printed)
    assert re.search(r"billing-writer.*Stable", printed)
    assert re.search(r"documents.*42", printed)


@pytest.mark.slow
def test_the_pages_pipeline_blocks_make_a_consistent_report(tmp_path: Path) -> None:
    [(language, text)] = BLOCK.findall(PIPELINE)

    printed = _run(language, text.replace("/tmp/fleet", str(tmp_path / "fleet")), "", os.environ["PATH"])

    assert f"{tmp_path}/fleet/report/index.html" in printed
    assert "<svg" in (tmp_path / "fleet" / "report" / "index.html").read_text()
    assert re.search(r"lines of \d+ groups, \d+ tables, 0 findings", printed)


@pytest.mark.parametrize("use", ["A single writer, in Python", "A worker pool, in Python", "Any language"])
def test_the_quick_start_of_each_use_fits_on_a_screen(use: str) -> None:
    """Its title, its text and its code: a terminal has 24 lines at least, and most have 40."""
    _, _, rest = README.partition(f"\n## {use}\n")
    section, _, _ = rest.partition("\n## ")

    assert BLOCK.search(section)
    assert all(len(code.splitlines()) <= SCREEN_LINES for _, code in BLOCK.findall(section))
    assert len(section.splitlines()) <= WINDOW_LINES


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)

    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["run", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def _run(language: str, text: str, url: str, path: str, environment: Mapping[str, str] | None = None) -> str:
    """Run one block as a reader would, on this test's server and with this environment's programs."""
    sidecar = f"127.0.0.1:{free_port()}"
    text = text.replace(DOCUMENTED_URL, url).replace(DOCUMENTED_SIDECAR, sidecar).replace(".venv/bin/", f"{BIN}/")
    match language:
        case "sh":
            command = ["bash", "-euo", "pipefail", "-c", text]
        case "python":
            command = [sys.executable, "-c", text]
        case "text":
            return ""
        case _:
            raise AssertionError(f"a block in {language} that nobody runs")
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ROTA_URL": url, "ROTA_SIDECAR_HTTP": sidecar, "PATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
