"""`rota lead` and `rota work` as processes of a test, and what can be seen of the processes below them."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep

import psutil

from tests.support.processes import Process, Processes, rota_command
from tests.support.reaper import is_alive

SESSION_MS = 60_000
"""No machine is so busy that a leader loses what it has in a test that is not about that."""
SHORT_SESSION_MS = 2_000
GRACE_MS = SHORT_SESSION_MS // 5
_DEADLINE_S = 60.0

# Ignores TERM, and so does its child, which moreover has left the session and the process group, and lost its parent.
STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("grandchild", os.getpid(), flush=True)
    else:
        os._exit(0)
else:
    print("child", os.getpid(), flush=True)
while True:
    time.sleep(60)
"""


@dataclass(frozen=True, slots=True)
class Wrappers:
    """Makes wrappers for one group."""

    processes: Processes
    url: str
    group_id: str
    folder: Path
    session_ms: int = SESSION_MS

    def of(self, group_id: str) -> Wrappers:
        """The same for another group, with a name that begins with this one's."""
        return replace(self, group_id=f"{self.group_id}-{group_id}")

    def soon_lost(self) -> Wrappers:
        """The same with members that are lost soon after they fall silent."""
        return replace(self, session_ms=SHORT_SESSION_MS)

    def lead(self, *command: str | Path, options: tuple[str, ...] = (), url: str | None = None) -> Process:
        return self._start("lead", self.group_id, *options, "--", *command, url=url)

    def hold(self, *command: str | Path, options: tuple[str, ...] = ()) -> Process:
        return self._start("hold", self.group_id, *options, "--", *command)

    def work(self, topic: str, *command: str | Path, options: tuple[str, ...] = ()) -> Process:
        named = ("--topic", topic) if topic else ()
        return self._start("work", self.group_id, *named, *options, "--", *command)

    def lead_python(self, script: str, *options: str, url: str | None = None) -> Process:
        """`rota lead -- python -c SCRIPT`."""
        return self.lead(sys.executable, "-c", textwrap.dedent(script), options=options, url=url)

    def _start(self, command: str, *arguments: str | Path, url: str | None = None) -> Process:
        settings = {"ROTA_URL": url or self.url, "ROTA_SESSION_TIMEOUT_MS": str(self.session_ms)}
        return self.processes.rota(command, "--grace-ms", str(GRACE_MS), *arguments, env=settings)

    def lead_with(
        self, environment: dict[str, str], script: str, *options: str, kind: str = "lead", prefix: tuple[str, ...] = ()
    ) -> Process:
        """`rota lead -- python -c SCRIPT`, or another kind, with more in its environment. `prefix` starts it."""
        settings = {"ROTA_URL": self.url, "ROTA_SESSION_TIMEOUT_MS": str(self.session_ms), **environment}
        command = (kind, self.group_id, "--grace-ms", str(GRACE_MS), *options, "--", sys.executable, "-c", script)
        return self.processes.start(*prefix, rota_command(), *command, env=settings)

    def put_topic(self, topic: str, partitions: int) -> None:
        put = self.processes.rota("topics", "put", topic, "-p", str(partitions), env={"ROTA_URL": self.url})
        assert put.wait_for_exit() == 0, put.output()


def pid_of(who: str, wrapper: Process) -> int:
    """The pid that a stubborn command has printed for its `child` or `grandchild`."""
    return int(wrapper.wait_for_line(rf"^{who} (\d+)$")[1])


def guardian_of(wrapper: Process) -> psutil.Process:
    """The guardian of a wrapper."""
    found: list[psutil.Process] = []

    def look() -> bool:
        children = psutil.Process(wrapper.pid).children()
        found.extend(child for child in children if "rota.agents.exec.guardian" in child.cmdline())
        return bool(found)

    wrapper.wait_until(look, "guardian")
    return found[0]


def wait_until_dead(*pids: int, deadline_s: float = _DEADLINE_S) -> float:
    """Return when none of the processes is alive: the monotonic time of the last look that found one."""
    last_seen = monotonic()
    give_up_at = last_seen + deadline_s
    while any(is_alive(pid) for pid in pids):
        last_seen = monotonic()
        assert last_seen < give_up_at, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        sleep(0.002)
    return last_seen


def environment_of(wrapper: Process) -> dict[str, str]:
    """The environment that a command printed as JSON."""
    reported: dict[str, str] = json.loads(wrapper.wait_for_line(r"^\{.*\}$")[0])
    return reported


PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"
