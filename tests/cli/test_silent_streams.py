"""`rota groups watch` over a path that becomes silent: the stream is opened anew, where it was."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from rota.cli import calls
from rota.cli import group_events as watch
from rota.cli.calls import Server
from rota.cli.group_events import group_events
from rota.cli.options import Shared

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
_KNOWN = b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\nconnection: close\r\n\r\n{"state":"Dead"}'


@contextmanager
def a_silent_server() -> Iterator[tuple[str, list[str]]]:
    """Sends the next event of a group on each stream, and then nothing, with the connection open."""
    asked: list[str] = []
    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                opened.append(connection)
                path = connection.recv(65_536).split()[1].decode()
                if "/events" not in path:
                    connection.sendall(_KNOWN)
                    connection.close()
                    continue
                asked.append(path.partition("?")[2])
                revision = len(asked)
                connection.sendall(_HEAD + f"id: {revision}\ndata: {json.dumps({'revision': revision})}\n\n".encode())

        serving = Thread(target=serve)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()
            for connection in opened:
                connection.close()


def test_a_silent_stream_is_opened_again_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (calls, watch):
        monkeypatch.setattr(module, "STREAM_SILENCE_MS", 100)
    monkeypatch.setattr(watch, "RECONNECT_TIMEOUT_MS", 1)
    with a_silent_server() as (url, asked), Server(Shared(url)) as server:
        events = group_events(server, "g", 0)
        revisions = [next(events)["revision"] for _ in range(3)]

    assert revisions == [1, 2, 3]
    assert asked == ["after=0", "after=1", "after=2"]
