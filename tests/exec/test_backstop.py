"""The wrapper ends a run whose guardian does not move."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import Processes
from tests.support.sources import ROOT

pytestmark = pytest.mark.processes

# A process of its own, for a wrapper that acts in its guardian's place kills all its descendants.
PROGRAM = """
import asyncio, os, signal
from rota.agents.exec import tree
from rota.agents.exec.run import Grant, Run
from rota.agents.exec.stopping import StopTimes

async def main():
    tree.adopt_orphans()
    now = asyncio.get_running_loop().time
    with Run(StopTimes(grace_ms=200, margin_ms=200)) as run:
        run.start(["sleep", "600"], Grant("g", 1, "m", {}, {}), now() + 30)
        running = asyncio.create_task(run.wait())
        while run._pid is None:
            await asyncio.sleep(0.01)
        os.kill(run._guardian.pid, signal.SIGSTOP)
        run.renew(now() + 1)
        await asyncio.wait((running,), timeout=15)
        print("ended" if running.done() else "still runs", tree.descendants(os.getpid()), flush=True)
        running.cancel()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the descendants of a process")
def test_a_paused_guardian_does_not_keep_its_command_alive(processes: Processes) -> None:
    program = processes.start(sys.executable, "-c", PROGRAM, cwd=ROOT)

    program.wait_for_exit()

    assert program.output() == "ended []\n"
