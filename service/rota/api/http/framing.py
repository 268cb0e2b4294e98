"""uvicorn's HTTP/1.1 protocol with bounds on what frames a request: its head, its trailers, and the time they take."""

from __future__ import annotations

import asyncio
import re
from enum import Enum, auto
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rota.access.browsers import parse_host
from rota.api.http.rendered import HttpRefusal, render_failure
from rota.protocol.errors import ErrorCode
from rota.replica.forwarding import DRAINING

FIRST_BYTE_SECONDS = 10.0
"""How long a connection may say nothing from its beginning. Between requests it has the time of keep-alive."""
HEAD_DEADLINE_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256
"""Headers of a head, and fields of a trailer. Each costs a call of the parser, and 64 KiB have room for 16,000."""
REST_DEADLINE_SECONDS = 10.0
"""How long the rest of a request may take that is answered already."""
LINGER_SECONDS = 1.0
"""The same where the answer ends the connection."""
MAX_FRAMING_BYTES = 64 * 1024
FRAMING_PER_BODY_BYTE = 8
"""Chunk sizes and trailers may take `MAX_FRAMING_BYTES`, and this much more for each byte of the body."""
MAX_WAITING_REQUESTS = 32
"""Of one connection, behind the one that is answered. Each is some kilobytes, and one read has room for 10,000."""
PIECE_BYTES = 64 * 1024
"""So much is parsed before the bounds are looked at again: one read may bring four times as much."""


_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_ABSOLUTE = re.compile(rb"[^/:]+://([^/?#]*)(.*)", re.DOTALL)


class Part(Enum):
    """The part of a request that the connection expects next."""

    NOTHING = auto()
    """Between two requests."""
    HEAD = auto()
    BODY = auto()
    """The body, its framing and its trailers."""


class TooManyRequests(Exception):
    """`MAX_WAITING_REQUESTS` wait on a connection, and another one begins."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes connections with late requests or endless framing, and drops all trailers.

    uvicorn stops its keep-alive timer at the first byte of a request and sets none for the rest of its head, so that a
    client that drips would hold a connection for ever. It appends trailers to the headers, without a bound: a client
    without credentials could fill the memory, and name in a trailer what a proxy in front of us had removed from the
    head. RFC 9110 §6.5.1 forbids to merge them. Bodies are bounded by the API.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part = Part.NOTHING
        self._lingers = False
        """Whether the connection ends with this request."""
        self._has_ended = False
        """Whether the bytes that are parsed now have ended a request."""
        self._has_begun = False
        """Whether they have ended a head: then they are not only the rest of a body."""
        self._is_full = False
        """Nothing more is parsed: too many requests wait, the last one asks for another protocol, or bytes are refused.

        The requests until then are the last ones that are answered.
        """
        self._refusal = b""
        """The answer to bytes that are refused, while those to the requests before them are under way."""
        self._fields = 0
        """Of the head or trailer that is parsed now."""
        self._head_bytes = 0
        self._body_bytes = 0
        self._rest_bytes = 0
        """All that followed the head, with the body."""
        self._head_deadline: asyncio.TimerHandle | None = None
        self._rest_deadline: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        """The request that is being answered. uvicorn knows only the one that has arrived last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_deadline = self.loop.call_later(FIRST_BYTE_SECONDS, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._clear_rest_deadline()
        self._end_answer()
        super().connection_lost(exc)
        # uvicorn leaves it where the connection was reset: it would keep all of the connection for its 75 s.
        self._unset_keepalive_if_required()

    def _end_answer(self) -> None:
        """Report the end of the connection to the answer under way; requests that wait behind it are dropped.

        uvicorn reports it to the request that has arrived last. A stream of events with another request behind it would
        never end, nor would a parked call before its time.
        """
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    # --- what the parser reports ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._part, self._fields = Part.HEAD, 0
        if len(self.pipeline) >= MAX_WAITING_REQUESTS:
            self._is_full = True
            raise TooManyRequests  # the parser stops
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > MAX_FIELDS:
            # The parser stops.
            raise HttpRefusal(431, f"headers and trailers must have at most {MAX_FIELDS} fields")
        if self._part is Part.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_begun = True
        self._body_bytes = self._rest_bytes = self._fields = 0
        former = self.cycle
        if self.parser.should_upgrade() and any(_frames_a_body(*header) for header in self.headers):
            # httptools would take the body for the bytes of another protocol.
            raise HttpRefusal(400, "a request to change the protocol must have no body")
        self._take_authority()
        super().on_headers_complete()
        # Not before: a head whose URL cannot be read has no cycle, and its refusal would end that of another request.
        self._part = Part.BODY
        if former is None or former.response_complete:  # type: ignore[redundant-expr]
            self._answering = self.cycle
        if self.scope["method"] not in _WITHOUT_BODY:
            self.cycle.transport = ClosedInTime(self)  # type: ignore[assignment]

    def _take_authority(self) -> None:
        """Replace the value of `Host` by the authority of an absolute target (RFC 9112 §3.2.2).

        A malformed `Host` stays as it is: the request is refused for it.
        """
        target = _ABSOLUTE.fullmatch(self.url)
        if target is None:
            return
        if parse_host([target[1].decode("latin-1")]) is None:
            raise HttpRefusal(400, "the host of the target is malformed")
        self.url = target[2] if target[2].startswith(b"/") else b"/" + target[2]
        for at, (name, value) in enumerate(self.headers):
            if name == b"host" and parse_host([value.decode("latin-1")]) is not None:
                self.headers[at] = name, target[1]

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # Not before: a request that fails here is refused as one with an unfinished body.
        self._part, self._has_ended = Part.NOTHING, True
        self._clear_rest_deadline()
        if self._lingers:
            self.transport.close()

    def on_response_complete(self) -> None:
        answered = self._answering
        assert answered is not None
        # uvicorn would keep an unread body, up to 256 KiB, until the connection's next request or its end.
        answered.body = bytearray()
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if self._refusal and self._has_answered():
            self._write_refusal()
        if answered is not self.cycle or self._part is not Part.BODY or self._rest_deadline is not None:
            # No body arrives, or that of a request behind this one, which is read when its turn comes.
            return
        if self.expect_100_continue:
            # The client may never send the body, and then its next request would be taken for it.
            self.close_after_rest()
        else:
            self._rest_deadline = self.loop.call_later(REST_DEADLINE_SECONDS, self._close)

    def close_after_rest(self) -> None:
        """Close once the rest of the request has arrived, or soon.

        To close on a client that still sends would reset the connection, and it would never read the answer.
        """
        if self._part is Part.BODY and not self.transport.is_closing():
            self._lingers = True
            self._clear_rest_deadline()
            self._rest_deadline = self.loop.call_later(LINGER_SECONDS, self._close)
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """End the connection in order, as the server stops. A body that is not whole is not waited for.

        Its request would be refused, but it may take until the server's time is over.
        """
        if self._part is not Part.BODY or self.cycle.response_started:
            self.close_in_order()
        elif self.pipeline:
            self._refuse(_draining())
        else:
            self._end_answer()
            self.transport.write(_refusal(_draining()))
            self.close_after_rest()

    def close_in_order(self) -> None:
        """Close the connection, once the requests that have begun are answered."""
        super().shutdown()

    # --- what arrives --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse a piece at a time, so that not much more is parsed than what the bounds allow."""
        self._unset_keepalive_if_required()
        if len(data) <= PIECE_BYTES:
            self._take(data)
            return
        for begin in range(0, len(data), PIECE_BYTES):
            if not self.transport.is_closing():
                self._take(data[begin : begin + PIECE_BYTES])

    def _take(self, data: bytes) -> None:
        if self._is_full:
            return
        self._has_ended = self._has_begun = False
        self._parse(data)
        if self.transport.is_closing() or self._is_full:
            return
        if self._part is Part.BODY:
            self._count_rest(len(data))
        elif self._part is Part.HEAD or not self._has_ended:
            self._count_head(len(data))
        else:
            self._clear_deadline()

    def _parse(self, data: bytes) -> None:
        """Parse what has arrived.

        A request to change the protocol is answered as any other request. It is the last one of its connection, because
        a proxy may take what follows for another protocol.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive, self._is_full = False, True
            self._clear_deadline()
        except (httptools.HttpParserError, MemoryError) as error:
            if self._is_full:
                # A client sends those without an answer again, on another connection.
                self.pipeline[0][0].keep_alive = False
                self._clear_deadline()
            else:
                self._refuse(_cause_of(error))

    def _count_rest(self, size: int) -> None:
        """Bound the bytes outside of head and body. Bytes with the end of a head among them are not counted."""
        self._clear_deadline()
        if self._has_begun:
            self._body_bytes = 0
            return
        self._rest_bytes += size
        if self._rest_bytes - self._body_bytes > MAX_FRAMING_BYTES + FRAMING_PER_BODY_BYTE * self._body_bytes:
            self._refuse(HttpRefusal(431, f"chunk sizes and trailers must be at most {MAX_FRAMING_BYTES} bytes"))

    def _count_head(self, size: int) -> None:
        """Bound a head, and the empty lines that may come before it, also while an answer is under way."""
        if not self._head_bytes:
            self._clear_deadline()
        is_idle = self._has_answered()
        if self._head_deadline is None and (self._part is Part.HEAD or is_idle):
            self._head_deadline = self.loop.call_later(HEAD_DEADLINE_SECONDS, self._close)
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HttpRefusal(431, f"the headers must be at most {MAX_HEAD_BYTES} bytes"))

    def _has_answered(self) -> bool:
        """Whether no answer is under way."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def _refuse(self, reason: Exception) -> None:
        """Answer what arrives with a problem, behind all answers that are under way, and end the connection."""
        is_behind = not self._has_answered()
        if self._part is Part.BODY and self.cycle is not None:
            if self.pipeline:
                # The request with this body: it is refused before its turn.
                self.pipeline.popleft()
                self.cycle = self.pipeline[0][0] if self.pipeline else self._answering  # type: ignore[assignment]
            elif self.cycle.response_started:
                self.transport.close()
                return
            else:
                is_behind = False
        self._refusal = _refusal(reason)
        if is_behind:
            self._is_full = True
            self._clear_deadline()
        else:
            self._write_refusal()

    def _write_refusal(self) -> None:
        self.transport.write(self._refusal)
        self.transport.close()

    def _close(self) -> None:
        self._head_deadline = self._rest_deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def _clear_deadline(self) -> None:
        self._head_bytes = 0
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _clear_rest_deadline(self) -> None:
        if self._rest_deadline is not None:
            self._rest_deadline.cancel()
            self._rest_deadline = None


def _frames_a_body(name: bytes, value: bytes) -> bool:
    """Whether a header says that a body follows."""
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 \t") != b"")


def _draining() -> HttpRefusal:
    return HttpRefusal(503, DRAINING, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _cause_of(error: Exception) -> Exception:
    """What a callback of the parser raised, or the refusal of bytes that are not HTTP."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, httptools.HttpParserError | UnicodeDecodeError):
        return HttpRefusal(400, "Invalid HTTP request received.")
    return cause if isinstance(cause, Exception) else error


def _refusal(reason: Exception) -> bytes:
    """The last answer of a connection."""
    return render_failure(reason, "httpReceive").as_bytes((), closes=True)


class ClosedInTime:
    """The transport of one answer: to close it waits for the rest of the request."""

    __slots__ = ("_protocol", "is_closing", "write")

    def __init__(self, protocol: BoundedHttpProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.close_after_rest()
