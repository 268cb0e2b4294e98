"""The HTTP/1.1 protocol of a server's listeners: connections, certificates, and one write for each answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvicorn

from rota.access.certificates import PeerCertificate, caller_of_certificate
from rota.api.access.identity import RENEWAL_S
from rota.api.connections import Connection, Connections
from rota.api.http.credentials import CERTIFICATE
from rota.api.http.fast_path import FastPath
from rota.api.http.framing import BoundedHttpProtocol, Part
from rota.api.http.probes import AtCapacity
from rota.server.tls import certificate_of

WRITE_DEADLINE_SECONDS = 30.0


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, with the connections that are counted and the fast path."""

    connections: Connections
    fast_path: FastPath | None


class GuardedHttpProtocol(BoundedHttpProtocol):
    """The listeners of a server: with a bound on connections, certificates, and a deadline for clients that never read.

    One that takes no answer would hold its connection and the answer, also while we shut down.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write_deadline: asyncio.TimerHandle | None = None
        self._extensions: dict[str, Any] = {}
        self.entered: Connection | None = None
        """Set before the handshake where there is one."""
        self._expiry: asyncio.TimerHandle | None = None
        """Ends the connection in order, so that the client makes the next one with its next certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter(transport)
        connection = transport.get_extra_info("ssl_object")
        if connection is not None:
            self._take_certificate(certificate_of(connection))

    def _take_certificate(self, shown: PeerCertificate | None) -> None:
        """Serve the caller that the client's certificate names, on this connection until shortly before it expires.

        A certificate of an earlier session is taken over into a new one without being checked, so it may have expired.
        """
        if shown is None:
            self._extensions = {CERTIFICATE: None}
            return
        left_s = shown.ends_s - time.time()
        if left_s <= 0:
            self.transport.abort()
            return
        self._extensions = {CERTIFICATE: caller_of_certificate(shown)}
        self._expiry = self.loop.call_later(max(left_s - RENEWAL_S, left_s / 2), self.close_in_order)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.entered is not None:
            self.entered.left()
        self._clear_write_deadline()
        if self._expiry is not None:
            self._expiry.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_DEADLINE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear_write_deadline()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._extensions:
            self.scope["extensions"] = self._extensions

    def on_headers_complete(self) -> None:
        if self.entered is not None:
            self.entered.asked()
        super().on_headers_complete()
        if self.scope["method"] == "POST" and not self.expect_100_continue:
            self.cycle.transport = _HeadWithBody(self.cycle.transport)  # type: ignore[assignment]

    def _enter(self, transport: asyncio.Transport) -> None:
        if self.entered is None:
            assert isinstance(self.config, ServerConfig)
            source = self.client[0] if self.client else ""
            self.entered = self.config.connections.enter(source, transport.abort, self._is_idle)
        else:
            self.entered.close, self.entered.is_idle = transport.abort, self._is_idle
            self.entered.shook_hands()
        if self.entered.only_probes:
            self.app = AtCapacity(self.app)

    def _is_idle(self) -> bool:
        """No request is under way, nor the head of one that is not the first."""
        return self._part in (Part.NOTHING, Part.HEAD) and self._has_answered()

    def _clear_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


class _HeadWithBody:
    """A transport for one answer: its head, the first write, is sent with the second write.

    uvloop writes at once, so that each write is a system call, and wakes the reader.
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
