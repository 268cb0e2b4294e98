"""Programs that get SIGTERM or SIGINT leave their groups: the others take over, and no session has to expire."""

from __future__ import annotations

import signal
import sys
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rota.cli.calls import Server as Calls
from rota.cli.group_events import recent_events
from rota.cli.options import Shared
from tests.processes.server import Server
from tests.support.processes import Process, Processes
from tests.support.sources import ROOT

pytestmark = pytest.mark.processes

SESSION_MS = 600_000
"""Longer than a test may take: a member that does not leave stays."""
PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Programs of one group, and what the journal says of it."""

    processes: Processes
    url: str
    name: str
    folder: Path

    def start(self, program: str, **environment: str) -> Process:
        """Start a program of `tests/processes/programs`."""
        given = {
            "ROTA_URL": self.url,
            "GROUP": self.name,
            "SESSION_MS": str(SESSION_MS),
            "PARTITIONS": str(PARTITIONS),
            "LEDGER": str(self.ledger),
            **environment,
        }
        return self.processes.start(sys.executable, "-m", f"tests.processes.programs.{program}", env=given, cwd=ROOT)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def journal(self) -> Counter[str]:
        """How often each kind of line stands there."""
        with Calls(Shared(self.url)) as calls:
            return Counter(line["kind"] for line in recent_events(calls, self.name))

    def has_members(self, count: int) -> bool:
        return len(self._get("").get("members", ())) == count

    def offsets(self) -> dict[int, int]:
        return {each["partition"]: each["offset"] for each in self._get("/offsets")["offsets"]}

    def done(self) -> list[tuple[int, int, int]]:
        """Process id, partition and position of all that was worked on, in the order of the ledger."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [(int(pid), int(partition), int(position)) for pid, partition, position, _, _ in map(str.split, lines)]

    def works(self, worker: Process) -> bool:
        """Whether it has worked on anything yet."""
        return any(pid == worker.pid for pid, _, _ in self.done())

    def _get(self, below: str) -> dict[str, Any]:
        url = f"{self.url}/v1/namespaces/default/groups/{self.name}{below}"
        found: dict[str, Any] = httpx.get(url, trust_env=False, timeout=30).json()
        return found


@pytest.fixture
def group(shared_server: Server, processes: Processes, tmp_path: Path) -> Group:
    return Group(processes, shared_server.url, f"stopping-{uuid.uuid4().hex[:8]}", tmp_path)


@pytest.mark.parametrize("program", ["candidate", "sync_candidate"])
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_leader_that_gets_a_signal_leaves_and_the_next_leads(
    group: Group, program: str, number: signal.Signals
) -> None:
    first = group.start(program)
    first.wait_for_line("^leads")
    second = group.start(program)
    second.wait_until(lambda: group.has_members(2), "second candidate")

    first.send(number)

    second.wait_for_line("^leads")
    assert first.wait_for_exit() == 0
    assert first.output().splitlines()[-1] == "ended"
    assert "Traceback" not in first.output()
    assert (group.journal()["member_left"], group.journal()["member_expired"]) == (1, 0)


def test_a_second_signal_cancels_work_that_drains(group: Group) -> None:
    leader = group.start("candidate", DRAIN_MS=str(SESSION_MS))
    leader.wait_for_line("^leads")
    leader.send(signal.SIGTERM)
    leader.wait_for_line("^stops")
    assert group.journal()["member_left"] == 0

    leader.send(signal.SIGTERM)

    assert leader.wait_for_exit() == 0
    assert leader.output().splitlines()[-1] == "ended"
    assert (group.journal()["member_left"], group.journal()["member_expired"]) == (1, 0)


@pytest.mark.thorough
def test_a_worker_is_replaced_without_a_gap_in_the_progress(group: Group) -> None:
    """A rolling deployment of dynamic workers: one is ended, and its replacement starts at once."""
    old, other = group.start("worker"), group.start("worker")
    other.wait_until(lambda: group.works(old) and group.works(other), "work of both")

    old.send(signal.SIGTERM)
    new = group.start("worker")
    new.wait_until(lambda: group.works(new), "work of the replacement")
    for worker in (other, new):
        worker.send(signal.SIGTERM)

    assert [worker.wait_for_exit() for worker in (old, other, new)] == [0, 0, 0]
    positions: dict[int, list[int]] = defaultdict(list)
    for _, partition, position in group.done():
        positions[partition].append(position)
    assert positions == {partition: list(range(offset)) for partition, offset in group.offsets().items()}
    assert len(positions) == PARTITIONS
    assert (group.journal()["member_left"], group.journal()["member_expired"]) == (3, 0)
