"""A real PgBouncer in transaction mode in front of a Postgres: its sessions are shared by clients."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from tests.support.debian_package import program
from tests.support.directories import hand_over, open_to_everyone, server_user
from tests.support.postgres import PostgresServer
from tests.support.processes import Process
from tests.support.server import Server

_CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={postgres_port} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = {pool_size}
"""


class PgBouncer(Server):
    """One pooler for all databases of a server.

    Each database has `pool_size` connections for any number of clients. With few of them, what a client leaves behind
    in its session soon meets another one. `settings` are PgBouncer's own, and win over ours. `kill9` and `start` are
    the pooler's restart.
    """

    def __init__(
        self, postgres: PostgresServer, *, pool_size: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__("pgbouncer")
        self._postgres = postgres
        self._configuration = self._directory / "pgbouncer.ini"
        self._configuration.write_text(
            _CONFIGURATION.format(postgres_port=postgres.port, port=self.port, pool_size=pool_size)
            + "".join(f"{name} = {value}\n" for name, value in (settings or {}).items())
        )

    def through(self, dsn: str) -> str:
        """The DSN of a database of the server, by way of this pooler."""
        return dsn.replace(f":{self._postgres.port}/", f":{self.port}/")

    def start(self) -> None:
        pgbouncer, libraries = program("pgbouncer")
        if server_user() is not None and not open_to_everyone(pgbouncer):
            pgbouncer, libraries = self._copy(pgbouncer, libraries)
        self._process = Process(
            [pgbouncer, self._configuration],
            self._directory / "pgbouncer.log",
            env={"PATH": os.defpath, **libraries},
            user=server_user(),
        )
        self._process.wait_until(self._takes_connections, "a PgBouncer that takes connections")

    def _copy(self, pgbouncer: Path, libraries: dict[str, str]) -> tuple[Path, dict[str, str]]:
        """A copy where the server's user may enter."""
        copy = self._directory / "bin"
        copy.mkdir(exist_ok=True)
        sources = [pgbouncer]
        for directory in filter(None, libraries.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
            sources += Path(directory).glob("lib*.so*")
        for source in sources:
            shutil.copy2(source, copy / source.name)
        hand_over(copy)
        return copy / pgbouncer.name, {"LD_LIBRARY_PATH": str(copy)}

    def _takes_connections(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
