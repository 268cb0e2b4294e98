"""A kind of group of the user's own goes from v1 to v2 while its members work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = [pytest.mark.processes, pytest.mark.thorough]


def test_members_are_replaced_one_by_one(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()

    def member(*arguments: str) -> Process:
        return processes.start(
            sys.executable, "examples/own_kind/ranges.py", *arguments, env={"ROTA_URL": server.url}, cwd=ROOT
        )

    first = member("v1")
    first.wait_for_line("^works on 0-999$")
    second = member("v1")
    second.wait_for_line("^works on (0-499|500-999)$")

    large = member("v2", "3")
    large.wait_for_line("^works on (0-332|333-665|666-999)$")
    assert first.terminate() == 0
    small = member("v2", "1")
    small.wait_for_line("^works on (0-332|333-665|666-999)$")
    assert second.terminate() == 0

    large.wait_for_line("^works on (0-749|250-999)$")
    small.wait_for_line("^works on (0-249|750-999)$")
    assert not any("lost" in each.output() for each in (first, second, large, small))
