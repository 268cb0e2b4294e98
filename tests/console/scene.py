"""A small fleet that shows every page: workers, candidates, a group that waits for a member, and empty ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import httpx

from tests.console.member import TOPICS
from tests.processes.server import Server
from tests.support.processes import Process, Processes

ROOT = Path(__file__).parents[2]
WORKERS, CANDIDATES, STUCK = "indexers", "billing-writer", "reports"
PAGES = {
    "overview": "/",
    "groups": "/groups",
    "group": f"/groups/default/{WORKERS}",
    "rebalancing": f"/groups/default/{STUCK}",
    "leader": f"/groups/default/{CANDIDATES}/leader",
    "timeline": f"/groups/default/{WORKERS}/timeline",
    "offsets": f"/groups/default/{WORKERS}/offsets",
    "members": "/members",
    "leaders": "/leaders",
    "topics": "/topics",
    "topic": f"/topics/default/{min(TOPICS)}",
    "search": "/search?q=i",
    "shards": "/shards",
    "action": f"/groups/default/{WORKERS}/act/step-down",
    "manual": "/docs",
    "missing": "/groups/default/nothing",
}
SHORT_SESSION_MS = 2_000
"""Of members that are to be missed soon."""
_SESSION_MS = 60_000
"""Of the others: no machine is so busy that they are."""
_DEADLINE_S = 30.0


class Scene:
    """A server with its groups; the members are processes that can be killed."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self.server = Server(processes, f"sqlite:///{folder / 'rota.db'}")
        self.members: dict[str, Process] = {}

    @property
    def url(self) -> str:
        return self.server.url

    def open(self, workers: int = 2, candidates: int = 2) -> None:
        """Start everything, and return once every page has something to show."""
        self.server.start_and_wait()
        with self.calls() as http:
            for topic, partitions in TOPICS.items():
                http.put(f"topics/{topic}", json={"partitions": partitions}).raise_for_status()
            for number in range(3):
                offset = {"topic": "invoices", "partition": 0, "offset": 7}
                http.post(f"groups/nightly-{number}/offsets", json={"offsets": [offset]}).raise_for_status()
        for number in range(workers):
            self.add(WORKERS, f"indexer-{number}")
        for number in range(candidates):
            self.add(CANDIDATES, f"billing-{number}")
        self._leave_somebody_waiting()
        self.until_stable(WORKERS, workers)
        self.until_stable(CANDIDATES, candidates)

    def add(self, group_id: str, name: str, session_ms: int = _SESSION_MS) -> None:
        command = (sys.executable, "-m", "tests.console.member", self.url, group_id, name, str(session_ms))
        self.members[name] = self._processes.start(*command, cwd=ROOT)

    def kill(self, name: str) -> None:
        self.members.pop(name).kill9()

    def group(self, group_id: str) -> dict[str, object]:
        with self.calls() as http:
            found: dict[str, object] = http.get(f"groups/{group_id}").raise_for_status().json()
        return found

    def until_stable(self, group_id: str, members: int) -> dict[str, object]:
        """The group once it is Stable with so many members, all of which hold something."""
        give_up_at = monotonic() + _DEADLINE_S
        with self.calls() as http:
            while monotonic() < give_up_at:
                group = http.get(f"groups/{group_id}").json()
                held = [member["assignment"] for member in group.get("members", ())]
                if group.get("state") == "Stable" and len(held) == members and all(held):
                    return dict(group)
        raise AssertionError(f"{group_id} is not Stable with {members} members: {group}")

    def calls(self) -> httpx.Client:
        base_url = f"{self.url}/v1/namespaces/default/"
        return httpx.Client(base_url=base_url, timeout=30, trust_env=False)

    def _leave_somebody_waiting(self) -> None:
        """A newcomer has joined, and the member that was there says nothing: for a long session."""
        with self.calls() as http:
            first = _joined(http, "report-old", session_timeout_ms=600_000)
            http.post(f"groups/{STUCK}/sync", json={"member_id": first, "generation_id": 1}).raise_for_status()
            _joined(http, "report-new", session_timeout_ms=600_000, wait_ms=0)


def _joined(http: httpx.Client, name: str, **more: object) -> str:
    """Join in two steps; the member's id."""
    body = {"protocol_type": "worker", "protocols": [{"name": "range"}], "client_id": name, **more}
    body |= {"rebalance_timeout_ms": 600_000}
    member_id = str(http.post(f"groups/{STUCK}/join", json=body).json()["member_id"])
    http.post(f"groups/{STUCK}/join", json={**body, "member_id": member_id}).raise_for_status()
    return member_id


def scene_in(folder: Path) -> Iterator[Scene]:
    """A scene for the length of the block."""
    processes = Processes(folder)
    try:
        yield Scene(processes, folder)
    finally:
        processes.close()
