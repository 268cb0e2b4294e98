"""The sockets of a sidecar: an address, or a Unix socket that only its own user may open."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from rota.agents.sidecar.settings import Address


class CannotListen(Exception):
    """The address is taken or not this machine's; the message says which and why."""


@contextlib.contextmanager
def bound(at: Address | Path) -> Iterator[socket.socket]:
    """Yield a listening socket; raise `CannotListen` if it cannot be bound."""
    with _unix(at) if isinstance(at, Path) else _tcp(at) as listening:
        listening.setblocking(False)
        yield listening


@contextlib.contextmanager
def bound_or_none(at: Address | None) -> Iterator[socket.socket | None]:
    if at is None:
        yield None
    else:
        with bound(at) as listening:
            yield listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of a bound socket, with its actual port."""
    if listening.family == socket.AF_UNIX:
        return f"unix:{listening.getsockname()}"
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def _tcp(address: Address) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address.host, address.port))
            listening.listen()
        except (OSError, TypeError) as error:  # A TypeError means an invalid name.
            reason = getattr(error, "strerror", None) or error
            raise CannotListen(f"cannot listen on {address.host}:{address.port}: {reason}") from error
        yield listening


@contextlib.contextmanager
def _unix(path: Path) -> Iterator[socket.socket]:
    """Create the socket's file with mode 0600 from the start, and remove it at the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            _remove_stale(path)
            before = os.umask(0o177)
            try:
                listening.bind(str(path))
            finally:
                os.umask(before)
            listening.listen()
        except OSError as error:
            raise CannotListen(f"cannot listen on unix:{path}: {error.strerror or error}") from error
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a killed sidecar. A socket that answers, or any other file, is kept."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
