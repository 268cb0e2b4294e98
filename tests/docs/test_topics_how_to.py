"""docs/how-to/topics.md: its blocks run in their order, and it names every strategy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rota.core.assignors import STRATEGIES
from tests.docs.conftest import Reader
from tests.support.processes import rota_command

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "topics.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = {"sh": ("bash", "-euo", "pipefail", "-c"), "python": (sys.executable, "-c")}


@pytest.mark.slow
def test_every_block_does_what_the_text_says(reader: Reader, tmp_path: Path) -> None:
    putting, copies, sharing, own, following = (
        _run(language, text, tmp_path, url=reader.url) for language, text in BLOCK.findall(PAGE) if language in SHELLS
    )

    assert re.search(r"partitions\W+8", putting)
    assert copies.splitlines()[-3:] == [
        "first has a copy of ledger/0 and is active",
        "second has a copy of ledger/0 and is standby",
        "second was promoted",
    ]
    before, after = sharing.split("the first one becomes heavy\n")
    assert re.search(r"^small has \[\d, \d\]$", before, re.MULTILINE)
    assert "large has [0]\n" in after
    assert "small has [1, 2, 3, 4, 5, 6, 7]\n" in after
    assert own.count("TopicPartition(topic='articles'") == 8
    assert re.search(r"partitions\W+9", following)
    assert "topic articles is deleted" in following


def test_it_names_every_strategy() -> None:
    table = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))

    assert set(re.findall(r"`([a-z-]+)[`(]", table)) == set(STRATEGIES)


def _run(language: str, text: str, directory: Path, *, url: str) -> str:
    done = subprocess.run(
        [*SHELLS[language], text.replace("http://127.0.0.1:8080", url)],
        cwd=directory,
        env={**os.environ, "PATH": f"{rota_command().parent}:{os.environ['PATH']}", "ROTA_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
