"""uvicorn's HTTP/1.1 protocol with the deadlines and bounds that it lacks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rota.protocol.errors import ErrorCode
from rota.api.http.credentials import CERTIFICATE
from rota.wire.problems import PROBLEM_MEDIA_TYPE, problem_document
from rota.server.tls import caller_of_connection

HEAD_DEADLINE_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024


class GuardedHttpProtocol(HttpToolsProtocol):
    """Closes connections whose request line and headers do not arrive in time, or never end.

    uvicorn stops its keep-alive timer at the first byte of a request and sets none for the rest of
    its head, so a client that drips would hold a connection for ever. Bodies are bounded by the API.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaits_head = True
        self._head_bytes = 0
        self._head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_deadline = self.loop.call_later(self.timeout_keep_alive, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._awaits_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaits_head = False
        self._write_deadline: asyncio.TimerHandle | None = None
        self._extensions: dict[str, Any] = {}
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        connection = transport.get_extra_info("ssl_object")
        if connection is not None:
            self._extensions = {CERTIFICATE: caller_of_connection(connection.getpeercert())}
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

    def _refuse(self, status: int, detail: str) -> None:
        document = problem_document(ErrorCode.INVALID_REQUEST, detail, status, revision=0, epoch=0)
        if self._extensions:
            self.scope["extensions"] = self._extensions
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
