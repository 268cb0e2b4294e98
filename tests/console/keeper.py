"""A server with access rules, tokens in its store and quotas: for its pages in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.processes.server import Server
from tests.support.processes import Process, Processes

ACCESS = """
[[quotas]]
namespace = "default"
max_groups = 10
max_members = 4
requests_per_s = 200

[[quotas]]
namespace = "*"
max_parked = 50
"""


class Keeper:
    """The server, and an administrator's token for it."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        (folder / "access.toml").write_text(ACCESS)
        self._processes = processes
        self._store = f"sqlite:///{folder / 'rota.db'}"
        self.server = Server(processes, self._store, "--access-file", str(folder / "access.toml"))
        self.token = ""
        self.revoke_path = ""

    @property
    def url(self) -> str:
        return self.server.url

    def open(self) -> None:
        """Start it, and return once there is something to show."""
        self.server.start_and_wait()
        self.token = self._new_token("alice", "--allow", "admin", "--namespace", "*")
        self._new_token("old-laptop", "--allow", "member", "--group", "index*", "--expires-in", "30d")
        nightly = self._new_token("nightly-report", "--allow", "viewer", "--note", "reads what the night made of it")
        self.revoke_path = f"/tokens/{nightly.split('_')[1]}/revoke"
        headers = {"authorization": f"Bearer {self.token}"}
        base_url = f"{self.url}/v1/namespaces/"
        offset = {"topic": "invoices", "partition": 0, "offset": 7}
        with httpx.Client(base_url=base_url, headers=headers, timeout=30, trust_env=False) as http:
            for path in (*(f"default/groups/nightly-{number}" for number in range(9)), "team-b/groups/hourly"):
                http.post(f"{path}/offsets", json={"offsets": [offset]}).raise_for_status()

    def _new_token(self, name: str, *options: str) -> str:
        making: Process = self._processes.rota("token", "create", name, *options, "--store", self._store)
        assert making.wait_for_exit() == 0, making.output()
        return next(line for line in making.output().splitlines() if line.startswith("rota_"))


def keeper_in(folder: Path) -> Iterator[Keeper]:
    """A keeper's server for the length of the block."""
    processes = Processes(folder)
    try:
        yield Keeper(processes, folder)
    finally:
        processes.close()
