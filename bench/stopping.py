"""How long work stands still when a process gets SIGTERM: a leader with a candidate, a worker with its replacement."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import httpx

from bench.figures import Effort, Figure, transposed
from bench.servers import ROOT, rota_server
from bench.setting import HOST
from tests.processes.programs.worker import STEP_S
from tests.support.processes import Process

ROUNDS = 10
"""Stops in one sample."""
PARTITIONS = 8
SESSION_MS = 10_000
AIM_MS = 1_000.0


def run(effort: Effort) -> list[Figure]:
    """The programs are those of the tests, on a server with SQLite and default limits."""
    rounds = effort.times(ROUNDS)
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        server = stack.enter_context(rota_server(directory, f"sqlite:///{directory / 'rota.db'}"))
        programs = _Programs(f"http://{HOST}:{server.port}", directory, stack)
        leaders = [_summary(_leaders(programs, rounds)) for _ in range(effort.repeats)]
        workers = [_summary(_workers(programs, rounds)) for _ in range(effort.repeats)]
    what = "SIGTERM to the leader: to the work of the next one"
    idle = "SIGTERM to a worker and a new one at once: idle time of a partition"
    return [*_two(what, leaders), *_two(idle, workers)]


def _two(name: str, samples: list[tuple[float, float]]) -> list[Figure]:
    middle, worst = transposed(samples)
    return [
        Figure("stopping", f"{name}, p50", "ms", middle, aim=AIM_MS),
        Figure("stopping", f"{name}, max", "ms", worst),
    ]


def _summary(times_ms: list[float]) -> tuple[float, float]:
    return median(times_ms), max(times_ms)


_numbers = count(1)


@dataclass(frozen=True, slots=True)
class _Programs:
    """Starts the programs of the tests."""

    url: str
    directory: Path
    stack: ExitStack

    def start(self, program: str, group: str) -> Process:
        number = next(_numbers)
        environment = {
            "ROTA_URL": self.url,
            "GROUP": group,
            "SESSION_MS": str(SESSION_MS),
            "PARTITIONS": str(PARTITIONS),
            "LEDGER": str(self.ledger(group)),
        }
        command = [sys.executable, "-m", f"tests.processes.programs.{program}"]
        log = self.directory / f"{program}-{number}.log"
        return self.stack.enter_context(Process(command, log, env=environment, cwd=ROOT))

    def ledger(self, group: str) -> Path:
        return self.directory / f"{group}.ledger"

    def members(self, group: str) -> int:
        path = f"{self.url}/v1/namespaces/default/groups/{group}"
        return len(httpx.get(path, trust_env=False, timeout=30).json()["members"])


def _leaders(programs: _Programs, rounds: int) -> list[float]:
    """Milliseconds from each signal to the moment in which the next leader's work began."""
    group = f"election-{next(_numbers)}"
    leader = programs.start("candidate", group)
    leader.wait_for_line("^leads")
    times_ms = []
    for _ in range(rounds):
        candidate = programs.start("candidate", group)
        candidate.wait_until(lambda: programs.members(group) == 2, "second candidate")
        began = time.monotonic()
        leader.send(signal.SIGTERM)
        leads_at = float(candidate.wait_for_line(r"^leads \d+ (\S+)$")[1])
        times_ms.append((leads_at - began) * 1_000)
        leader.wait_for_exit()
        leader = candidate
    leader.terminate()
    return times_ms


def _workers(programs: _Programs, rounds: int) -> list[float]:
    """Milliseconds in which nothing worked on a partition, of each that a stopped worker had."""
    group = f"pool-{next(_numbers)}"
    workers = [programs.start("worker", group) for _ in range(2)]
    for worker in workers:
        worker.wait_until(_works(programs.ledger(group), worker), "work")
    times_ms: list[float] = []
    for _ in range(rounds):
        old = workers.pop(0)
        old.send(signal.SIGTERM)
        new = programs.start("worker", group)
        workers.append(new)
        new.wait_until(_works(programs.ledger(group), new), "work of the replacement")
        old.wait_for_exit()
        new.wait_until(_has_resumed(programs.ledger(group), old.pid), "work on all partitions")
        times_ms += [ms for ms in _idle_ms(programs.ledger(group), old.pid) if ms is not None]
    for worker in workers:
        worker.terminate()
    return times_ms


def _works(ledger: Path, worker: Process) -> Callable[[], bool]:
    return lambda: any(pid == worker.pid for pid, _, _ in _lines(ledger))


def _has_resumed(ledger: Path, stopped: int) -> Callable[[], bool]:
    return lambda: None not in _idle_ms(ledger, stopped)


def _idle_ms(ledger: Path, stopped: int) -> list[float | None]:
    """From the last step of a stopped worker in a partition to the next step there, less the usual pause.

    None for a partition that nothing has worked on since.
    """
    last: dict[int, float] = {}
    first_after: dict[int, float] = {}
    for pid, partition, at_s in _lines(ledger):
        if pid == stopped:
            last[partition] = at_s
            first_after.pop(partition, None)
        elif partition in last:
            first_after.setdefault(partition, at_s)
    return [max(0.0, first_after[each] - last[each] - STEP_S) * 1_000 if each in first_after else None for each in last]


def _lines(ledger: Path) -> list[tuple[int, int, float]]:
    """Process id, partition and time of each complete line."""
    text = ledger.read_text() if ledger.exists() else ""
    parts = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(int(pid), int(partition), float(at_s)) for pid, partition, _, _, at_s in parts]
