"""Every fenced block of the documentation runs, is compared with output, is parsed, or counts as prose."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.conftest import Reader
from tests.docs.pages import FOR_PEOPLE, PARSED, ROOT, RUN, Block, blocks_of, check_page, commands_of, unknown_words
from tests.processes.server import Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

DOCS = ROOT / "docs"
QUICK = (
    "how-to/backup-and-restore.md",
    "how-to/observe.md",
    "how-to/shard-pool.md",
    "how-to/sidecar.md",
    "how-to/stop.md",
    "how-to/test-your-work.md",
)
SLOW = (
    "how-to/cron-singleton.md",
    "how-to/permits.md",
    "how-to/workers.md",
    "how-to/operate-a-group.md",
    "how-to/migrate-from-kafka.md",
    "how-to/migrate-from-kazoo.md",
)
ON_POSTGRES = ("how-to/exactly-once-into-postgres.md",)
ELSEWHERE = {
    "README.md": "tests/docs/test_readme.py",
    "docs/fencing.md": "tests/fencing/test_sql_functions.py",
    "docs/how-to/console.md": "tests/docs/test_console_how_to.py",
    "docs/how-to/kubernetes.md": "tests/docs/test_kubernetes_how_to.py",
    "docs/how-to/pipeline.md": "tests/pipeline/test_commands.py",
    "docs/how-to/query-the-lake.md": "tests/docs/test_query_how_to.py",
    "docs/how-to/security.md": "tests/docs/test_security_how_to.py",
    "docs/how-to/topics.md": "tests/docs/test_topics_how_to.py",
    "docs/tutorials/first-hour.md": "tests/docs/test_first_hour.py",
    "docs/reference/sdk.md": "tests/docs/test_references.py",
}
"""Pages that tests of their own see to. They run the blocks, but for the reference of the SDK, which is compared with
the code, and what is about SQL or Spark in fencing.md and pipeline.md, whose functions and commands they run."""


@pytest.mark.thorough
@pytest.mark.parametrize("page", [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW)])
def test_the_blocks_of_a_page_do_what_it_says(page: str, reader: Reader) -> None:
    assert check_page(DOCS / page, reader.url, reader.path, reader.folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", ON_POSTGRES)
def test_the_blocks_about_postgres_do_what_they_say(
    page: str, processes: Processes, postgres_dsn: str, tmp_path: Path
) -> None:
    assert processes.rota("db", "upgrade", "--store", postgres_dsn).wait_for_exit() == 0
    server = Server(processes, postgres_dsn)
    server.start_and_wait()

    assert check_page(DOCS / page, server.url, os.environ["PATH"], tmp_path, postgres_dsn)


def test_no_block_is_left_to_itself() -> None:
    """Blocks that are neither run nor parsed are for people, and each page that is run elsewhere has a test."""
    here = {f"docs/{page}" for page in (*QUICK, *SLOW, *ON_POSTGRES)}
    counted = Counter(_fate(block, here) for block in every_block())

    print(dict(counted))
    assert counted["nobody's"] == 0, [block.where for block in every_block() if _fate(block, here) == "nobody's"]
    assert counted["run here"] >= 10
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []
    assert [page for page in here | set(ELSEWHERE) if not (ROOT / page).exists()] == []


NAMES = re.compile(
    r"""client\.(?:leader|lock|consumer|worker_pool|permits|connect_worker)\("([\w-]+)\""""
    r"""|rota (?:lead|hold|work) ([\w-]+)|--lead ([\w-]+)|topics put ([\w-]+)|put_topic\("([\w-]+)\""""
    r"""|\{"([\w-]+)": \d+\}"""
)
"""Groups and topics in the blocks of a page."""
OF_OTHER_SERVERS = {f"docs/how-to/{name}.md" for name in ("kubernetes", "security", "test-your-work")}


def test_no_two_pages_use_the_same_names() -> None:
    """A newcomer has one server for all pages, and what one page leaves there is in the way of another."""
    pages: dict[str, set[str]] = {}
    for block in every_block():
        if block.language in RUN and block.page not in OF_OTHER_SERVERS:
            for found in NAMES.finditer(block.text):
                pages.setdefault(next(filter(None, found.groups())), set()).add(block.page)

    assert {name: sorted(used) for name, used in pages.items() if len(used) > 1} == {}
    assert len(pages) > 30


def test_every_command_that_is_shown_is_there() -> None:
    """Also in blocks that need a cluster, or a machine of one's own."""
    shown = [
        (block, words) for block in every_block() if block.language in ("sh", "text") for words in commands_of(block)
    ]
    wrong = {block.where: unknown for block, words in shown if (unknown := unknown_words(words))}

    assert wrong == {}
    assert len(shown) >= 30


def every_block() -> Iterator[Block]:
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        yield from blocks_of(page)


def _fate(block: Block, here: set[str]) -> str:
    if block.page in here:
        return "run here" if block.language in RUN else "compared" if block.is_output else "data"
    if block.page in ELSEWHERE:
        return f"seen to by {ELSEWHERE[block.page]}"
    known = block.language in FOR_PEOPLE or block.language in PARSED
    return "for people" if known else "nobody's"


def test_each_failure_of_the_page_has_tests() -> None:
    page = (DOCS / "explanation/failures.md").read_text().partition("`tests/docs/failures.toml`")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)[2:]
    tried = tomllib.loads((ROOT / "tests/docs/failures.toml").read_text())["failure"]
    met = (ROOT / "tests/simulation/situations.txt").read_text().splitlines()

    assert [each["name"] for each in tried] == rows
    assert [name for each in tried for name in each["tests"] if not (ROOT / name).is_file()] == []
    assert [name for each in tried for name in each.get("met", []) if name not in met] == []
    assert sum(not each["tests"] for each in tried) <= 1


def test_the_security_policy_is_about_this_version() -> None:
    """And says how to report, so that a release without a look at the page is noticed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    policy = (ROOT / "SECURITY.md").read_text()

    assert f"(now {project['version'].rpartition('.')[0]})" in policy
    assert all(f"## {title}" in policy for title in ("Supported versions", "Report a vulnerability", "What to expect"))
