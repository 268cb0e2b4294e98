"""examples/sidecar.sh beside sidecars that are killed or restart: one script writes at a time, and no script ends."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sidecar.sidecars import Sidecar, Sidecars
from tests.support.curl import put_curl_on_path
from tests.support.processes import Process

pytestmark = pytest.mark.processes

DIES_MS = 4_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "sidecar.sh"


@dataclass(frozen=True)
class Scripts:
    """Scripts that share one ledger."""

    sidecars: Sidecars

    @property
    def ledger(self) -> Path:
        return self.sidecars.folder / "ledger"

    def beside(self, sidecar: Sidecar) -> Process:
        path = f"{put_curl_on_path(self.sidecars.folder)}:{os.environ['PATH']}"
        environment = {"ROTA_SIDECAR_URL": sidecar.url, "PATH": path, "NO_PROXY": "*"}
        return self.sidecars.processes.start(EXAMPLE, self.ledger, env=environment)

    def lines_of(self, name: str) -> list[str]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [line for line in lines if line.endswith(name)]

    def tokens(self) -> list[int]:
        return [int(line.split()[0]) for line in self.ledger.read_text().splitlines()]


@pytest.mark.thorough
def test_the_other_script_takes_over_with_a_higher_token(sidecars: Sidecars) -> None:
    scripts = Scripts(sidecars)
    first = sidecars.start(name="pod-0", session_ms=DIES_MS)
    first.get("/wait?for=leader&timeout=20")
    second = sidecars.start(name="pod-1")
    leading, waiting = (scripts.beside(sidecar) for sidecar in (first, second))
    leading.wait_until(lambda: len(scripts.lines_of("pod-0")) >= 2, "lines of the leader")
    assert scripts.lines_of("pod-1") == []
    first.process.send(signal.SIGKILL)
    leading.kill9()
    waiting.wait_until(lambda: len(scripts.lines_of("pod-1")) >= 2, "lines of the other")

    assert scripts.tokens() == sorted(scripts.tokens())
    assert len(set(scripts.tokens())) >= 2


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_the_restarted_sidecars_script_has_a_higher_token(sidecars: Sidecars, number: signal.Signals) -> None:
    scripts = Scripts(sidecars)
    first = sidecars.start(name="pod-0", session_ms=DIES_MS)
    script = scripts.beside(first)
    script.wait_until(lambda: len(scripts.lines_of("pod-0")) >= 2, "lines of the leader")

    first.process.send(number)
    script.wait_for_line("curl|httpx")  # It has met a sidecar that is away.
    written = len(scripts.tokens())
    sidecars.start("--http", first.url.removeprefix("http://"), name="pod-0", session_ms=DIES_MS)
    script.wait_until(lambda: len(scripts.tokens()) >= written + 2, "lines after the restart")

    assert script.running
    assert scripts.tokens() == sorted(scripts.tokens())
    assert scripts.tokens()[-1] > scripts.tokens()[0]
