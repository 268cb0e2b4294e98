"""The site builds without a warning, has no dead links, and names nothing of the machine that built it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FROM_ELSEWHERE = re.compile(r'<(?:script|link|img)[^>]+"https?://[^"]+"')
pytestmark = pytest.mark.slow


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    strictly = ("-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-d", str(site / "doctrees"))
    command = [sys.executable, *strictly, str(docs), str(site / "html")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_site_builds_strictly_and_names_no_machine(tmp_path: Path) -> None:
    built = build(DOCS, tmp_path)

    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "html").rglob("*.html"))
    assert len(pages) >= 60
    reported = [page.name for page in pages if str(ROOT) in page.read_text()]
    assert reported == []
    assert [page.name for page in pages if FROM_ELSEWHERE.search(page.read_text())] == []


@pytest.mark.parametrize("target", ["protocol-of-old.md", "../no/such/file.py", "protocol.md#nothing"])
def test_a_broken_link_is_no_site(target: str, tmp_path: Path) -> None:
    docs = tmp_path / "repository" / "docs"
    docs.mkdir(parents=True)
    for name in ("conf.py", "protocol.md"):
        shutil.copy(DOCS / name, docs)
    (docs / "index.md").write_text(f"# A page\n\n[gone]({target})\n")

    built = build(docs, tmp_path)

    assert built.returncode != 0
    assert "no/such/file" in built.stderr or "protocol" in built.stderr
