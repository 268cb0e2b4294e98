"""uvicorn's HTTP/1.1 protocol with the deadlines and bounds that it lacks."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rota.api.http.credentials import CERTIFICATE
from rota.protocol.errors import ErrorCode
from rota.server.tls import caller_of_connection, has_ended
from rota.wire.problems import PROBLEM_MEDIA_TYPE, problem_document

HEAD_DEADLINE_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024
WRITE_DEADLINE_SECONDS = 30.0
FILES_OF_OURS = 128
"""Open files that connections must leave to the store, to peers and to Redis."""


def allow_connections() -> None:
    """Take as many open files as the system lets us have. Many start a process with 1,024, which says nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _most_connections() -> int:
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_OF_OURS)


class GuardedHttpProtocol(HttpToolsProtocol):
    """Closes connections whose request line and headers do not arrive in time, or never end, and who never reads.

    uvicorn stops its keep-alive timer at the first byte of a request and sets none for the rest of
    its head, so a client that drips would hold a connection for ever; and one that takes no answer would
    hold its connection and the answer, also while we shut down. Bodies are bounded by the API.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaits_head = True
        self._head_bytes = 0
        self._head_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._extensions: dict[str, Any] = {}
        self._most_connections = _most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most_connections:
            self._refuse(503, "too many connections", ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        connection = transport.get_extra_info("ssl_object")
        if connection is not None:
            shown = connection.getpeercert()
            if has_ended(shown):
                transport.abort()
                return
            self._extensions = {CERTIFICATE: caller_of_connection(shown)}
        self._head_deadline = self.loop.call_later(self.timeout_keep_alive, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._clear_write_deadline()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_DEADLINE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_write_deadline()

    def on_message_begin(self) -> None:
        self._awaits_head = True
        super().on_message_begin()
        if self._extensions:
            self.scope["extensions"] = self._extensions

    def on_headers_complete(self) -> None:
        self._awaits_head = False
        super().on_headers_complete()
        if self.scope["method"] == "POST" and not self.expect_100_continue:
            self.cycle.transport = _HeadWithBody(self.transport)  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaits_head:
            if self._head_bytes or self._head_deadline is not None:
                self._clear_deadline()
            return
        if not self._head_bytes:
            self._clear_deadline()
            self._head_deadline = self.loop.call_later(HEAD_DEADLINE_SECONDS, self._close)
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the headers must be at most {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP at all; uvicorn would answer in plain text."""
        self._refuse(400, msg)

    def _refuse(self, status: int, detail: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        document = problem_document(code, detail, status, revision=0, epoch=0)
        body = json.dumps(document).encode()
        head = (
            f"content-type: {PROBLEM_MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        ).encode()
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _close(self) -> None:
        self._head_deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def _clear_deadline(self) -> None:
        self._head_bytes = 0
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _clear_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


class _HeadWithBody:
    """A transport for one answer: what is written first, its head, goes out with what is written next.

    uvloop writes at once, so that each write is a system call, and wakes who reads.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()
