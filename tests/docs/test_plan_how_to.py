"""docs/how-to/plan.md: its blocks run in their order, and the plan is printed as the page shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import Reader
from tests.support.processes import rota_command

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "plan.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = {"sh": ("bash", "-euo", "pipefail", "-c"), "python": (sys.executable, "-c")}


@pytest.mark.processes
@pytest.mark.thorough
def test_every_block_does_what_the_text_says(reader: Reader, tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE)

    done = [_run(language, text, url=reader.url, folder=tmp_path) for language, text in blocks if language in SHELLS]
    _, joining, hypotheses, in_python = done

    shown = next(text for language, text in blocks if language == "text")
    assert joining.startswith(shown)
    assert re.search(r"^join phases: +2$", hypotheses, re.MULTILINE)
    assert '"rounds": 0,' in hypotheses
    assert in_python.startswith("6 partitions move:")


def _run(language: str, text: str, *, url: str, folder: Path) -> str:
    done = subprocess.run(
        [*SHELLS[language], text.replace("http://127.0.0.1:8080", url)],
        env={**os.environ, "PATH": f"{rota_command().parent}:{os.environ['PATH']}", "ROTA_URL": url},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout
