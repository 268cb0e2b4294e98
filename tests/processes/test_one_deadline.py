"""Commands and programs that get SIGTERM while their server is silent or gone, and their work does not end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.exec.wrappers import STUBBORN
from tests.processes.server import Server
from tests.support.ports import free_port
from tests.support.processes import Process, Processes
from tests.support.sources import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

SESSION_MS = 60_000
BUSY_S = 60.0
"""What a busy machine may add to the 9 s. The exact limit is that of the same test in virtual time."""


def commands(processes: Processes, url: str, folder: Path) -> dict[str, Process]:
    """One of each, once all of them are at work. The commands ignore SIGTERM, and the hook hangs."""
    hook = folder / "hook.sh"
    hook.write_text('#!/bin/sh\necho "hook $1"\ntrap "" TERM\nwhile :; do sleep 1; done\n')
    hook.chmod(0o755)
    settings = {"ROTA_URL": url, "ROTA_SESSION_TIMEOUT_MS": str(SESSION_MS)}
    stubborn = ("--", sys.executable, "-c", STUBBORN)
    put = processes.rota("topics", "put", "parcels", "-p", "2", env={"ROTA_URL": url})
    assert put.wait_for_exit() == 0, put.output()
    listening = ("--http", f"127.0.0.1:{free_port()}", "--probes", "off", "--exec", str(hook))
    program = {"GROUP": "g", "SESSION_MS": str(SESSION_MS), "PARTITIONS": "2", "LEDGER": str(folder / "ledger")}
    module = ("-m", "tests.processes.programs.worker")
    started = {
        "rota lead": processes.rota("lead", "lead", *stubborn, env=settings),
        "rota hold": processes.rota("hold", "hold", *stubborn, env=settings),
        "rota work": processes.rota("work", "work", "--topic", "parcels", *stubborn, env=settings),
        "rota sidecar": processes.rota("sidecar", "--lead", "beside", *listening, env=settings),
        "pool.run": processes.start(sys.executable, *module, env={**settings, **program}, cwd=ROOT),
    }
    lines = {"rota sidecar": "^hook ", "pool.run": "^starts"}
    for name, process in started.items():
        process.wait_for_line(lines.get(name, r"^grandchild \d+"))
    started["pool.run"].wait_until(lambda: (folder / "ledger").stat().st_size > 0, "work of the pool")
    return started


@pytest.mark.parametrize("state", ["answers", "is silent", "is gone"])
def test_every_command_ends_within_its_deadline(processes: Processes, tmp_path: Path, state: str) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    left = commands(processes, server.url, tmp_path)
    if state == "is silent":
        server.process.pause()
    elif state == "is gone":
        server.process.kill9()

    began_at, took_s = monotonic(), dict[str, float]()
    for process in left.values():
        process.send(signal.SIGTERM)
    while left and monotonic() < began_at + 60:
        for name in [name for name, process in left.items() if not process.running]:
            del left[name]
            took_s[name] = round(monotonic() - began_at, 1)
        sleep(0.02)

    print(f"a server that {state}: {took_s}")
    assert not left
    assert max(took_s.values()) < 9.0 + BUSY_S
