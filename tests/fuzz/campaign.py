"""One run of a fuzzer: cases from a seed, and what each of them must not do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, count, islice
from random import Random
from time import monotonic
from typing import Protocol

from tests.fuzz.watch import MOST_CPU_S, MOST_GROWTH_MIB, Tracebacks, resident_mib

WARM_UP = 300
"""Cases before memory counts: what they make the process import, compile and keep stays."""
MEASURED_EVERY = 500
ROUND = 20_000
"""Cases between two starts of the target."""
MOST_FINDINGS = 5
"""A run ends with so many: one cause has many cases."""


class Broken(AssertionError):
    """A case has broken a rule of its target; the message says which."""


class Fuzzer(Protocol):
    """One target, ready to be attacked."""

    def play(self, random: Random) -> None:
        """Make one case from `random` and play it. Raises `Broken`; every other exception is a finding as well."""

    def cpu_s(self) -> float:
        """CPU time so far of the thread that serves the cases."""


@dataclass(frozen=True, slots=True)
class Target:
    """A fuzzer by its name."""

    name: str
    about: str
    opened: Callable[[], AbstractContextManager[Fuzzer]]


@dataclass
class Report:
    """What a run has found."""

    target: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    worst_cpu_s: float = 0.0
    worst: int = 0
    """The number of the case that has taken the most CPU time."""
    resting_mib: float = 0.0
    grown_mib: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"{self.target}: {self.cases:,} cases of seed {self.seed} in {self.seconds:.0f} s, "
            f"at most {self.worst_cpu_s * 1000:.0f} ms of CPU each (number {self.worst}), "
            f"memory {self.grown_mib:+.0f} MiB, {len(self.findings)} findings"
        )
        return "\n".join([head, *self.findings])


def run(target: Target, seed: int, *, cases: int | None = None, seconds: float | None = None, first: int = 0) -> Report:
    """Play `cases`, or as many as fit into `seconds`, and check the target after each."""
    report, began = Report(target.name, seed), monotonic()
    numbers = _numbers(first, cases, None if seconds is None else began + seconds)
    with Tracebacks() as tracebacks:
        while len(report.findings) < MOST_FINDINGS and (number := next(numbers, None)) is not None:
            # A server keeps the groups that cases make. A new one for each round separates these from a leak.
            with target.opened() as fuzzer:
                _play_round(target, fuzzer, tracebacks, report, chain((number,), islice(numbers, ROUND - 1)))
    report.seconds = monotonic() - began
    return report


def _play_round(target: Target, fuzzer: Fuzzer, tracebacks: Tracebacks, report: Report, numbers: Iterable[int]) -> None:
    for number in numbers:
        found = _found_by(target, fuzzer, tracebacks, number, report)
        report.cases += 1
        if report.cases == WARM_UP:
            report.resting_mib = resident_mib()
        elif report.cases > WARM_UP and report.cases % MEASURED_EVERY == 0:
            report.grown_mib = max(report.grown_mib, resident_mib() - report.resting_mib)
            if report.grown_mib > MOST_GROWTH_MIB:
                found.append(f"memory has grown by {report.grown_mib:.0f} MiB")
        report.findings += [f"{replay(target.name, report.seed, number)}: {each}" for each in found]
        if len(report.findings) >= MOST_FINDINGS:
            break


def replay(name: str, seed: int, number: int) -> str:
    """The command that plays one case and all that follow it."""
    return f"python -m tests.fuzz {name} --seed {seed} --first {number}"


def _numbers(first: int, cases: int | None, end: float | None) -> Iterator[int]:
    for number in count(first) if cases is None else range(first, first + cases):
        if end is not None and monotonic() >= end:
            return
        yield number


def _found_by(target: Target, fuzzer: Fuzzer, tracebacks: Tracebacks, number: int, report: Report) -> list[str]:
    found: list[str] = []
    try:
        cpu_s = _play(fuzzer, target, report.seed, number)
        if cpu_s > MOST_CPU_S:
            # A collection of garbage may have come in between. It does not come in each time.
            cpu_s = min(cpu_s, *(_play(fuzzer, target, report.seed, number) for _ in range(2)))
        report.worst_cpu_s, report.worst = max((report.worst_cpu_s, report.worst), (cpu_s, number))
        if cpu_s > MOST_CPU_S:
            found.append(f"{cpu_s * 1000:.0f} ms of CPU")
    except Broken as broken:
        found.append(str(broken))
    except Exception:
        found.append(traceback.format_exc())
    return found + tracebacks.take()


def _play(fuzzer: Fuzzer, target: Target, seed: int, number: int) -> float:
    before = fuzzer.cpu_s()
    fuzzer.play(Random(f"{target.name}:{seed}:{number}"))
    return fuzzer.cpu_s() - before
