"""examples/sidecar.sh beside two sidecars: one writes at a time, and the other goes on where the first is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.sidecar.sidecars import Sidecar, Sidecars
from tests.support.curl import put_curl_on_path
from tests.support.processes import Process

pytestmark = pytest.mark.processes

DIES_MS = 4_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "sidecar.sh"


def test_the_script_that_leads_writes_and_the_other_takes_over_with_a_higher_token(sidecars: Sidecars) -> None:
    ledger = sidecars.folder / "ledger"
    path = f"{put_curl_on_path(sidecars.folder)}:{os.environ['PATH']}"

    def beside(sidecar: Sidecar) -> Process:
        return sidecars.processes.start(EXAMPLE, ledger, env={"ROTA_SIDECAR_URL": sidecar.url, "PATH": path})

    def lines_of(name: str) -> list[str]:
        return [line for line in ledger.read_text().splitlines() if line.endswith(name)] if ledger.exists() else []

    first = sidecars.start(name="pod-0", session_ms=DIES_MS)
    first.get("/wait?for=leader&timeout=20")
    second = sidecars.start(name="pod-1")
    scripts = [beside(sidecar) for sidecar in (first, second)]
    scripts[0].wait_until(lambda: len(lines_of("pod-0")) >= 2, "lines of the leader")
    assert lines_of("pod-1") == []
    first.process.send(signal.SIGKILL)
    scripts[0].kill9()
    scripts[1].wait_until(lambda: len(lines_of("pod-1")) >= 2, "lines of the other")

    tokens = [int(line.split()[0]) for line in ledger.read_text().splitlines()]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) >= 2
