"""PostgreSQL's own programs: `pg_dump` and `pg_restore`. Passwords go by their environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from rota.passwords import read_password
from rota.replica.ports import StoreRefused
from rota.storage.urls import PostgresLocation

_SHOWN_LINES = 5
_CONNECT_TIMEOUT_S = "10"


class PostgresProgramFailed(StoreRefused):
    """A program ended with an error; the message ends with its output."""


def program(name: str) -> str:
    """Where the program is."""
    found = shutil.which(name)
    if found is None:
        raise StoreRefused(
            f"{name} is not on PATH: install PostgreSQL's client programs, of the server's major release or a later one"
        )
    return found


def run(command: Sequence[str], location: PostgresLocation | None = None) -> bytes:
    """Run a program to its end; returns its output.

    With a `location`, `-d` and its connection string are added.
    """
    arguments, environment = [*command], dict(os.environ)
    if location is not None:
        dsn, environment = connection_of(location)
        arguments += ["-d", dsn]
    done = subprocess.run(arguments, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise _failed(command[0], done.stderr)
    return done.stdout


@contextmanager
def output_of(command: Sequence[str]) -> Iterator[IO[bytes]]:
    """Gives the output of a program while it runs.

    Raises:
        PostgresProgramFailed: The program ended with an error, although the block did not.
    """
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        assert process.stdout is not None, "there is a pipe"
        yield process.stdout
        if process.wait():
            said.seek(0)
            raise _failed(command[0], said.read())


def connection_of(location: PostgresLocation) -> tuple[str, dict[str, str]]:
    """The connection string without a password, which all users of the machine may see; and the environment with it."""
    parts = urlsplit(location.writable_dsn)
    login, at, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    pairs = [pair for pair in parts.query.split("&") if pair]
    given = [pair.partition("=")[2] for pair in pairs if pair.startswith("password=")]
    query = "&".join(pair for pair in pairs if not pair.startswith("password="))
    # A host that hangs would be waited for without an end.
    environment = {"PGCONNECT_TIMEOUT": _CONNECT_TIMEOUT_S, **os.environ, "PGAPPNAME": "rota"}
    if location.password_file is not None:
        environment["PGPASSWORD"] = read_password(location.password_file)
    elif password or given:
        environment["PGPASSWORD"] = unquote(given[-1] if given else password)
    # Not by urlunsplit, which leaves the slashes out where the host is (`postgresql:///rota`).
    return f"postgresql://{user}{at}{hosts}{parts.path}{query and f'?{query}'}", environment


def _failed(command: str, said: bytes) -> PostgresProgramFailed:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    name = Path(command).name
    return PostgresProgramFailed(f"{name} failed: {' / '.join(lines[:_SHOWN_LINES]) or 'it did not say why'}")
