"""One HTTP/1.1 connection: what a client may send and in what time, and in what order it is answered.

httptools parses every byte. The member calls in their plain form are answered from the parser's callbacks
(`rota.server.http.member_calls`); uvicorn's cycle and the ASGI application answer all other requests.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Literal

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rota.core.access.browsers import parse_host
from rota.core.access.certificates import PeerCertificate, caller_of_certificate, read_certificate
from rota.core.access.rules import Caller
from rota.core.replica.forwarding import DRAINING
from rota.protocol.errors import ErrorCode
from rota.server.access.identity import RENEWAL_S
from rota.server.connections import Connection, Connections
from rota.server.http.credentials import CERTIFICATE
from rota.server.http.member_calls import MemberCalls, PendingAnswer, Sender
from rota.server.http.probes import AT_CAPACITY, ProbesOnly
from rota.server.http.rendered import HttpRefusal, Rendered, render_failure

FIRST_BYTE_SECONDS = 10.0
"""How long a connection may say nothing at first. Between requests it has the time of keep-alive."""
HEAD_DEADLINE_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256
"""Headers of a head, and fields of a trailer. Each costs a call of the parser, and 64 KiB have room for 16,000."""
REST_DEADLINE_SECONDS = 10.0
"""How long the rest of a request may take after its answer."""
LINGER_SECONDS = 1.0
"""How long the rest of a request may take if its answer ends the connection."""
WRITE_DEADLINE_SECONDS = 30.0
"""How long a client may read nothing. It would hold its connection and the answer, also while we shut down."""
MAX_FRAMING_BYTES = 64 * 1024
FRAMING_PER_BODY_BYTE = 8
"""Chunk sizes and trailers may take `MAX_FRAMING_BYTES`, and this much more for each byte of the body."""
MAX_WAITING_REQUESTS = 32
"""So many requests of one connection wait behind the one that is answered: one read has room for 10,000 of them."""
PIECE_BYTES = 64 * 1024
"""So much is parsed before the bounds are checked again: one read may bring four times as much."""

UVICORN = {
    HttpToolsProtocol: (
        *("app", "client", "config", "cycle", "expect_100_continue", "flow", "headers", "loop", "parser", "pipeline"),
        *("scope", "server_state", "timeout_keep_alive", "timeout_keep_alive_task", "transport", "url"),
        *("on_body", "on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete"),
        *("shutdown", "timeout_keep_alive_handler", "_unset_keepalive_if_required"),
    ),
    RequestResponseCycle: (
        *("body", "disconnected", "keep_alive", "message_event", "response_complete", "response_started", "transport"),
    ),
    FlowControl: ("resume_reading", "write_paused"),
}
"""Every attribute of uvicorn that this file uses and uvicorn does not document (ADR 79). A release may change them: so
uvicorn is pinned to one minor version, and a test compares this list with the release that is installed."""

_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_ABSOLUTE = re.compile(rb"[^/:]+://([^/?#]*)(.*)", re.DOTALL)

Deadline = Literal["head", "rest", "write", "certificate"]


class Part(Enum):
    """The part of a request that the connection expects next."""

    NOTHING = auto()
    """Between two requests."""
    HEAD = auto()
    BODY = auto()
    """The body, its framing and its trailers."""


NOTHING, HEAD, BODY = Part
"""To read a member from its class takes as long as a call of a function."""


class TooManyRequests(Exception):
    """`MAX_WAITING_REQUESTS` wait on a connection, and another one begins."""


class HttpConfig(uvicorn.Config):
    """uvicorn's configuration for `HttpConnection`, with the budget of connections and the member calls, if any."""

    connections: Connections | None = None
    member_calls: MemberCalls | None = None

    unwritten: list[HttpConnection]
    """Connections with answers that are written when this turn of the event loop ends."""

    def __init__(self, app: ASGIApp, **settings: Any) -> None:
        super().__init__(
            app,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Trust in proxies is a security setting, not a default: `TrustedProxies`.
            proxy_headers=False,
            **settings,
        )
        self.unwritten = []

    def write_answers(self) -> None:
        """Write the answers of a turn. To write wakes the client up, which takes longer than to answer a heartbeat: so
        answers that one connection has in a turn share a write, and no write interrupts the reading of the turn.
        """
        connections, self.unwritten = self.unwritten, []
        for connection in connections:
            connection.write_answers()


class HttpConnection(HttpToolsProtocol):
    """uvicorn's protocol with bounds on requests, certificates, and the member calls in front of the application.

    uvicorn stops its keep-alive timer at the first byte of a request and sets none for the rest of its head, so that a
    client that drips would hold a connection for ever. It appends trailers to the headers, without a bound: a client
    without credentials could fill the memory, and name in a trailer what a proxy in front of us had removed from the
    head. RFC 9110 §6.5.1 forbids to merge them. Bodies are bounded by the API.

    The scope and the task of a request are made once it is clear that it is no plain member call: at the end of its
    head, of its body, or of the bytes that have arrived.
    """

    config: HttpConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entered: Connection | None = None
        """The connection in the budget of the server. A listener with TLS sets it before the handshake."""
        self._is_silent = True
        """No head of a request has arrived yet."""
        self._extensions: dict[str, Any] = {}
        """What the scope of each request has under `extensions`."""
        self._sender: Sender | None = None
        """The client, if it may make member calls here."""
        self._deadlines: dict[Deadline, asyncio.TimerHandle] = {}
        # What arrives:
        self._part = NOTHING
        self._is_plain = False
        """The body of a member call arrives."""
        self._body = b""
        self._has_begun = False
        """Whether the bytes that are parsed now have ended a head: then they are not only the rest of a body."""
        self._has_ended = False
        """Whether the bytes that are parsed now have ended a request."""
        self._head_bytes = self._body_bytes = 0
        self._rest_bytes = 0
        """All that followed the head."""
        self._is_full = False
        """The parser has paused: too many requests wait, the last one asks for another protocol, or bytes are refused.

        The requests until then are the last ones that are answered.
        """
        self._lingers = False
        """Whether the connection ends with this request."""
        # What is answered:
        self._answers = bytearray()
        """Answers to member calls that are written when the turn of the event loop ends, or before anything else is."""
        self._keep_alive_until = 0.0
        """By the event loop's clock, and only after member calls: uvicorn sets the timer anew after other requests."""
        self._answering: RequestResponseCycle | PendingAnswer | None = None
        """The request that is being answered. uvicorn knows only the one that has arrived last."""
        self._refusal = b""
        """The answer to bytes that are refused, while those to the requests before them are under way."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline("head", FIRST_BYTE_SECONDS, self._close)
        host, connections = self.client[0] if self.client else "", self.config.connections
        if connections is not None:
            if self.entered is None:
                self.entered = connections.enter(host, transport.abort, self._is_idle)
            else:
                self.entered.close, self.entered.is_idle = transport.abort, self._is_idle
                self.entered.shook_hands()
        tls = transport.get_extra_info("ssl_object")
        certificate = self._take_certificate(tls) if tls is not None else None
        if self.entered is not None and self.entered.only_probes:
            self.app = ProbesOnly(self.app, AT_CAPACITY)
        elif self.config.member_calls is not None:
            self._sender = Sender(self.config.member_calls, host, certificate)

    def _take_certificate(self, tls: ssl.SSLObject) -> Caller | None:
        """The caller that the client's certificate names. The connection ends in order shortly before it expires.

        So the client makes the next connection with its next certificate. A certificate of an earlier session is reused
        in a new one without a check, so it may have expired.
        """
        self._extensions = {CERTIFICATE: None}
        shown = certificate_of(tls)
        if shown is None:
            return None
        left_s = shown.ends_s - time.time()
        if left_s <= 0:
            self.transport.abort()
            return None
        caller = self._extensions[CERTIFICATE] = caller_of_certificate(shown)
        self._set_deadline("certificate", max(left_s - RENEWAL_S, left_s / 2), self.close_in_order)
        return caller

    def connection_lost(self, exc: Exception | None) -> None:
        if self.entered is not None:
            self.entered.left()
        self._answers = bytearray()
        self._clear("head", "rest", "write", "certificate")
        if isinstance(self._answering, PendingAnswer):
            self._answering.hang_up()
        self._end_answer()
        super().connection_lost(exc)
        # uvicorn leaves it if the connection was reset: it would keep all of the connection for its 75 s.
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline("write", WRITE_DEADLINE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._clear("write")

    def shutdown(self) -> None:
        """End the connection in order, as the server stops. A body that is not whole is not waited for.

        Its request would be refused, but it may take until the server's time is over.
        """
        if self._part is not BODY or self.cycle.response_started:
            self.close_in_order()
        elif self.pipeline:
            self._refuse(_draining())
        else:
            self._end_answer()
            self.transport.write(_refusal(_draining()))
            self.close_after_rest()

    def close_in_order(self) -> None:
        """Close the connection, once the requests that have begun are answered."""
        self.write_answers()
        super().shutdown()

    def close_after_rest(self) -> None:
        """Close once the rest of the request has arrived, or soon.

        To close on a client that still sends would reset the connection, and it would never read the answer.
        """
        if self._part is BODY and not self.transport.is_closing():
            self._lingers = True
            self._set_deadline("rest", LINGER_SECONDS, self._close)
        else:
            self.transport.close()

    # --- what arrives --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse a piece at a time, so that not much more is parsed than what the bounds allow."""
        if len(data) > PIECE_BYTES:
            for begin in range(0, len(data), PIECE_BYTES):
                self.data_received(data[begin : begin + PIECE_BYTES])
                self.write_answers()
            return
        if self._is_full or self.transport.is_closing():
            return
        self._has_ended = self._has_begun = False
        before = self._answering
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, MemoryError) as error:
            self._stop_reading(error)
        if self._is_plain:
            # Its body is not whole.
            self._is_plain = False
            self._begin()
            self.on_body(self._body)
        is_closing = self.transport.is_closing()
        if self._answering is not before and isinstance(self._answering, PendingAnswer) and not is_closing:
            # A request behind it has paused reading, and the end of the connection would not be noticed. uvicorn's
            # cycle reads on when its task asks for the body.
            self.flow.resume_reading()
        if is_closing or self._is_full:
            return
        if self._part is BODY:
            self._count_rest(len(data))
        elif self._part is HEAD or not self._has_ended:
            self._count_head(len(data))
        else:
            self._clear_head()
            if self._has_answered():
                self._keep_alive_until = self.loop.time() + self.timeout_keep_alive
                if self.timeout_keep_alive_task is None:
                    self._set_keep_alive(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for its time. Requests do not move the timer, but its end."""
        self.timeout_keep_alive_task = None
        if self._part is NOTHING and self._has_answered():
            left_s = self._keep_alive_until - self.loop.time()
            if left_s > 0:
                self._set_keep_alive(left_s)
            else:
                self._close()

    def _set_keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _stop_reading(self, error: Exception) -> None:
        """Take no further request of this connection, because the parser has stopped.

        A request to change the protocol is answered as any other request. It is the last one of its connection, because
        a proxy may take what follows for another protocol.
        """
        if isinstance(error, httptools.HttpParserUpgrade):
            self.cycle.keep_alive, self._is_full = False, True
            self._clear_head()
        elif self._is_full:
            # A client sends those without an answer again, on another connection.
            self.pipeline[0][0].keep_alive = False
            self._clear_head()
        else:
            self._refuse(_cause_of(error))

    def on_message_begin(self) -> None:
        self._part, self.url, self.headers = HEAD, b"", []
        if len(self.pipeline) >= MAX_WAITING_REQUESTS:
            self._is_full = True
            raise TooManyRequests  # the parser stops

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self.headers
        headers.append((name.lower(), value))
        if len(headers) > MAX_FIELDS:
            # The parser stops.
            raise HttpRefusal(431, f"headers and trailers must have at most {MAX_FIELDS} fields")

    def on_headers_complete(self) -> None:
        self._has_begun = True
        if self._is_silent:
            self._is_silent = False
            if self.entered is not None:
                self.entered.asked()
        cycle = self.cycle
        if (
            self._sender is not None
            and (cycle is None or cycle.response_complete)  # type: ignore[redundant-expr]
            and not self.flow.write_paused
            and not self.transport.is_closing()
        ):
            self._is_plain = self._sender.plan(self.parser, self.url, self.headers)
        if self._is_plain:
            self._part, self._body = BODY, b""
        else:
            self._begin()

    def _begin(self) -> None:
        """Begin the request as uvicorn would have done at its first byte, and at the end of its head."""
        url, headers, former = self.url, self.headers, self.cycle
        super().on_message_begin()
        self.url = url
        self.headers += headers
        self.expect_100_continue = (b"expect", b"100-continue") in [(name, value.lower()) for name, value in headers]
        if self._extensions:
            self.scope["extensions"] = self._extensions
        if self.parser.should_upgrade() and any(_frames_a_body(*header) for header in headers):
            # httptools would take the body for the bytes of another protocol.
            raise HttpRefusal(400, "a request to change the protocol must have no body")
        self._take_authority()
        super().on_headers_complete()
        # Not before: a head whose URL cannot be read has no cycle, and its refusal would end that of another request.
        self._part = BODY
        self._body_bytes = self._rest_bytes = 0
        if former is None or former.response_complete:  # type: ignore[redundant-expr]
            self._answering = self.cycle
        if self.scope["method"] not in _WITHOUT_BODY:
            self.cycle.transport = _AnswerTransport(self)  # type: ignore[assignment]
        self.headers = []  # of the trailers, which are dropped

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
        if self._is_plain:
            self._body += body
            return
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_plain:
            self._is_plain = False
            assert self._sender is not None
            answer = self._sender.answer(self._body)
            if answer is not None:
                self._part, self._has_ended = NOTHING, True
                self._give(answer)
                return
            self._begin()
            self.on_body(self._body)
        super().on_message_complete()
        # Not before: a request that fails here is refused as one with an unfinished body.
        self._part, self._has_ended = NOTHING, True
        self._clear("rest")
        if self._lingers:
            self.transport.close()

    # --- what is answered ----------------------------------------------------------------------------

    def _has_answered(self) -> bool:
        """Whether no answer is under way."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete  # type: ignore[redundant-expr]

    def _is_idle(self) -> bool:
        """No request is under way, nor the head of one that is not the first."""
        return self._part is not BODY and self._has_answered() and not self._answers

    def _give(self, answer: Rendered | PendingAnswer) -> None:
        """Answer a member call, now or when the answer is known."""
        if isinstance(answer, PendingAnswer):
            answer.write = self._write_pending
            self.cycle = self._answering = answer  # type: ignore[assignment]
            return
        if not self._answers:
            unwritten = self.config.unwritten
            if not unwritten:
                self.loop.call_soon(self.config.write_answers)
            unwritten.append(self)
        self._answers += answer.as_bytes(self.server_state.default_headers)
        if len(self._answers) > PIECE_BYTES:
            self.write_answers()

    def write_answers(self) -> None:
        """Write the answers to member calls that have collected: before another answer, and before the end."""
        if self._answers:
            answers, self._answers = self._answers, bytearray()
            self.transport.write(answers)

    def _write_pending(self, pending: PendingAnswer, rendered: Rendered) -> None:
        """Write an answer that has become known, as uvicorn's cycle writes one."""
        self.write_answers()
        pending.response_complete = True
        closes = not pending.keep_alive
        self.transport.write(rendered.as_bytes(self.server_state.default_headers, closes=closes))
        if closes:
            self.transport.close()
        self.on_response_complete()

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
        if answered is not self.cycle or self._part is not BODY or "rest" in self._deadlines:
            # No body arrives, or that of a request behind this one, which is read when its turn comes.
            return
        if self.expect_100_continue:
            # The client may never send the body, and then its next request would be taken for it.
            self.close_after_rest()
        else:
            self._set_deadline("rest", REST_DEADLINE_SECONDS, self._close)

    def _end_answer(self) -> None:
        """Report the end of the connection to the answer under way; requests that wait behind it are dropped.

        uvicorn reports it to the request that has arrived last. A stream of events with another request behind it would
        never end, nor would a parked call before its time.
        """
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _refuse(self, reason: Exception) -> None:
        """Answer what arrives with a problem, behind all answers that are under way, and end the connection."""
        self._is_plain = False
        is_behind = not self._has_answered()
        if self._part is BODY and self.cycle is not None:
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
            self._clear_head()
        else:
            self._write_refusal()

    def _write_refusal(self) -> None:
        self.write_answers()
        self.transport.write(self._refusal)
        self.transport.close()

    # --- how long it may take ------------------------------------------------------------------------

    def _count_rest(self, size: int) -> None:
        """Bound the bytes outside of head and body. Bytes with the end of a head among them are not counted."""
        self._clear_head()
        if self._has_begun:
            self._body_bytes = 0
            return
        self._rest_bytes += size
        if self._rest_bytes - self._body_bytes > MAX_FRAMING_BYTES + FRAMING_PER_BODY_BYTE * self._body_bytes:
            self._refuse(HttpRefusal(431, f"chunk sizes and trailers must be at most {MAX_FRAMING_BYTES} bytes"))

    def _count_head(self, size: int) -> None:
        """Bound a head, and the empty lines that may come before it, also while an answer is under way."""
        if not self._head_bytes:
            self._clear("head")
        if "head" not in self._deadlines and (self._part is HEAD or self._has_answered()):
            self._set_deadline("head", HEAD_DEADLINE_SECONDS, self._close)
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HttpRefusal(431, f"the headers must be at most {MAX_HEAD_BYTES} bytes"))

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.write_answers()
            self.transport.close()

    def _set_deadline(self, name: Deadline, seconds: float, act: Callable[[], object]) -> None:
        self._clear(name)
        self._deadlines[name] = self.loop.call_later(seconds, act)

    def _clear(self, *names: Deadline) -> None:
        for name in names:
            if (timer := self._deadlines.pop(name, None)) is not None:
                timer.cancel()

    def _clear_head(self) -> None:
        self._head_bytes = 0
        if self._deadlines:
            self._clear("head")


class _AnswerTransport:
    """The transport of one answer to a request that may have a body. To close it waits for the rest of the request."""

    def __init__(self, connection: HttpConnection) -> None:
        transport = connection.transport
        self.write, self.is_closing = transport.write, transport.is_closing
        self.close = connection.close_after_rest


def certificate_of(tls: ssl.SSLObject) -> PeerCertificate | None:
    """The certificate that the client of a connection has shown; None if it has shown none that can be read."""
    der = tls.getpeercert(binary_form=True) if tls.getpeercert() else None
    try:
        return read_certificate(der) if der else None
    except ValueError:
        return None


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
