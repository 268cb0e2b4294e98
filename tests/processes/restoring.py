"""Ways in which a store is taken back to an earlier state, and a resource that keeps the highest token that it saw."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.processes.server import SHARD_COUNT, Server
from tests.support.directories import server_user
from tests.support.postgres import PostgresServer, binary
from tests.support.processes import Process, Processes

GROUP = "ledger"
LEASE_MS = 1_000


class Copy(Protocol):
    """A store, and a way to copy it and to bring the copy back."""

    url: str
    shards_counted: int
    """Of how many shards the server finds by itself, when it starts, that they have lost lines."""

    def take(self) -> None:
        """Copy the store as it is. The server may be running."""

    def stop(self, server: Process) -> None:
        """End the server, in order or not."""

    def bring_back(self) -> None:
        """Make the store what the copy holds, and safe to serve. The server is stopped."""


class Commands:
    """`rota db backup`, then `rota db restore`; on both engines."""

    shards_counted = 0

    def __init__(self, url: str, processes: Processes, folder: Path) -> None:
        self.url = url
        self._processes = processes
        self._file = folder / "backup"

    def take(self) -> None:
        self._rota("db", "backup", str(self._file))

    def stop(self, server: Process) -> None:
        server.terminate()

    def bring_back(self) -> None:
        self._rota("db", "restore", str(self._file))

    def _rota(self, *arguments: str) -> None:
        path = f"{binary('pg_dump').parent}{os.pathsep}{os.environ['PATH']}"
        run(self._processes, *arguments, "--store", self.url, path=path)


class CopiedFile(Commands):
    """A SQLite file that is put back by hand after a `kill -9`. No command says so: the note beside it must."""

    shards_counted = SHARD_COUNT

    def take(self) -> None:
        super().take()
        self._noted = self._note()

    def stop(self, server: Process) -> None:
        server.wait_until(lambda: self._note() != self._noted, "renewal of a lease")
        server.kill9()

    def bring_back(self) -> None:
        path = self.url.removeprefix("sqlite:///")
        shutil.copyfile(self._file, path)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)

    def _note(self) -> bytes:
        return Path(f"{self.url.removeprefix('sqlite:///')}.lock").read_bytes()


class CopiedCluster:
    """The directory of a whole Postgres, as a snapshot of its volume; then `rota db restored`."""

    shards_counted = 0

    def __init__(self, server: PostgresServer, processes: Processes) -> None:
        self.url = server.create_database("restored")
        self._server = server
        self._processes = processes

    def take(self) -> None:
        """Return once a server that runs has renewed its leases, or lost and claimed them again."""
        self._move(self._server.data_directory, self._copy)
        now_ms = int(self._ask("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"))
        leases = "SELECT min(lease_until_ms) FROM rota.shards WHERE shard_id >= 0"
        renewed_ms = now_ms + LEASE_MS
        self._server.process.wait_until(lambda: int(self._ask(leases)) >= renewed_ms, "renewal of the leases")

    def _ask(self, query: str) -> str:
        return self._server.execute(query, database="restored")

    def stop(self, server: Process) -> None:
        server.terminate()

    def bring_back(self) -> None:
        self._move(self._copy, self._server.data_directory)
        run(self._processes, "db", "restored", "--store", self.url)

    @property
    def _copy(self) -> Path:
        return self._server.data_directory.with_name("copy")

    def _move(self, source: Path, target: Path) -> None:
        self._server.stop()
        shutil.rmtree(target, ignore_errors=True)
        user = server_user()
        subprocess.run(["cp", "-Rp", source, target], check=True, user=user, group=user)
        self._server.start()


def run(processes: Processes, *arguments: str, path: str | None = None) -> None:
    command = processes.rota(*arguments, env={"PATH": path} if path else None)
    assert command.wait_for_exit() == 0, command.output()


@dataclass(slots=True)
class Resource:
    """Accepts a write with a token that is no lower than the highest one so far, as `docs/fencing.md` says."""

    highest: int = 0
    holders: dict[int, set[str]] = field(default_factory=dict)
    """The members of accepted writes, by token."""

    def write(self, token: int, holder: str) -> bool:
        if token < self.highest:
            return False
        self.highest = token
        self.holders.setdefault(token, set()).add(holder)
        return True

    @property
    def twins(self) -> list[int]:
        """Tokens under which two members wrote."""
        return [token for token, holders in self.holders.items() if len(holders) > 1]


class Holder:
    """A member over plain HTTP, which leads its group."""

    def __init__(self, server: Server, http: httpx.Client) -> None:
        self._base = f"{server.url}/v1/namespaces/default/groups/{GROUP}"
        self._http = http
        self._process = server.process
        self.member_id = ""
        self.generation_id = 0

    def join(self) -> int:
        """Join, or join again, which opens a generation; returns the token.

        As a client does, it joins again where the coordinator does not answer: the server loses its leases where its
        Postgres was away for longer than one.
        """
        self._process.wait_until(self._joins, "a member that has joined and synced")
        return self.generation_id

    def _joins(self) -> bool:
        body = {"protocol_type": "worker", "protocols": [{"name": "range"}], "client_id": "w"}
        reply = self._post("join", {**body, "session_timeout_ms": 60_000, "member_id": self.member_id})
        if "generation_id" not in reply:
            # A newcomer was given its id, or there was no answer.
            self.member_id = str(reply.get("member_id", self.member_id))
            return False
        self.generation_id = int(reply["generation_id"])
        sync = {"member_id": self.member_id, "generation_id": self.generation_id}
        assignments = [{"member_id": self.member_id, "assignment": ""}]
        return "assignment" in self._post("sync", {**sync, "assignments": assignments})

    def leave(self) -> None:
        self._post("leave", {"members": [{"member_id": self.member_id}]})

    def commit(self, offset: int) -> httpx.Response:
        body = {"member_id": self.member_id, "generation_id": self.generation_id}
        commits = [{"topic": "entries", "partition": 0, "offset": offset}]
        return self._http.post(f"{self._base}/offsets", json={**body, "offsets": commits})

    def is_current(self) -> bool:
        """The answer to a resource that asks just before a write."""
        body = {"member_id": self.member_id, "generation_id": self.generation_id}
        return self._http.post(f"{self._base}/fence", json=body).is_success

    def _post(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(f"{self._base}/{call}", json=body)
        return dict(answer.json())


def generations(holder: Holder, count: int) -> Iterator[int]:
    """Tokens of as many generations that the holder opens."""
    return (holder.join() for _ in range(count))
