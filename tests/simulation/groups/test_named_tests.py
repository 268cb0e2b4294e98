"""Every defect of the findings, planted again, is found: by the liveness check, or by the test that its row names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.simulation.groups.findings import FINDINGS
from tests.simulation.groups.named import ROWS, SUBJECTS
from tests.simulation.groups.planted_plugin import WITHOUT, has_short_limit, node_of
from tests.simulation.groups.plants import PLANTS
from tests.support.sources import ROOT

DEADLINE_S = 600
IGNORED = "ignore::pytest.PytestUnraisableExceptionWarning"

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "subjects",
    [
        pytest.param(SUBJECTS.keys() - {"storage", "programs"}, id="SDK", marks=pytest.mark.thorough),
        pytest.param({"storage"}, id="storage", marks=pytest.mark.thorough),
        pytest.param({"programs"}, id="programs", marks=pytest.mark.slow),
    ],
)
def test_each_planted_defect_fails_the_test_that_its_row_names(subjects: set[str], tmp_path: Path) -> None:
    """In three processes: a start of pytest costs more than most rows."""
    rows = {name: row for subject in sorted(subjects) for name, row in SUBJECTS[subject].rows.items()}
    planted = {name: node_of(name, row) for name, row in rows.items()}
    without = {name: node_of(name + WITHOUT, row) for name, row in rows.items() if has_short_limit(row)}

    output, failures = _run([*planted.values(), *without.values()], tmp_path / "report")

    missed = {name: failures[node] for name, node in planted.items() if rows[name].fails_with not in failures[node]}
    assert missed == {}, f"not found, or by another exception than the row says\n{output}"
    assert {name: failures[node] for name, node in without.items() if failures[node]} == {}, output


def test_every_finding_has_a_row() -> None:
    found = {finding for row in ROWS.values() for finding in row.findings}
    found |= {finding for plant in PLANTS.values() for finding in plant.finding.split(", ")}

    assert found - {"the check"} == set(FINDINGS)


def test_every_finding_of_one_row_is_named_once() -> None:
    assert len(ROWS) == sum(len(plants.rows) for plants in SUBJECTS.values()), "two rows have one name"


def _run(nodes: list[str], report: Path) -> tuple[str, dict[str, set[str]]]:
    """The output of pytest, and by node the types of the exceptions by which it failed: none where it passed."""
    # Without the plug-ins that these tests do not use it starts in half the time.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
        environment.pop(inherited, None)
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "tests.simulation.groups.planted_plugin", "--planted", str(report))
    ran = subprocess.run(
        # A failed test leaves connections open, of which the collector warns in a later one.
        [sys.executable, "-m", "pytest", "-q", "--tb=line", "-m", "", "-W", IGNORED, *plugins, *nodes],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    output = ran.stdout[-6_000:] + ran.stderr[-2_000:]
    assert ran.returncode == 1, f"pytest ended with {ran.returncode}, as where a test is not there\n{output}"
    failures: defaultdict[str, set[str]] = defaultdict(set)
    for line in map(json.loads, report.read_text().splitlines()):
        failures[line["test"]] |= set(line["kinds"])
    assert failures.keys() == set(nodes), f"not all tests have run\n{output}"
    return output, failures
