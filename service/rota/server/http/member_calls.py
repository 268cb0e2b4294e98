"""Member calls in their plain form, which the connection answers from the parser's callbacks (ADR 79).

A call is plain if a known caller sends it in one piece, with the headers that clients of ours send. FastAPI's router
has all others. Both ways have the guard, the coordinator, the metrics and the renderer in common, and the rules of
reading a body, so that they differ in cost only. Nothing is counted or charged before it is certain that the answer is
given here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import httptools

from rota.core.access.rules import Caller
from rota.core.access.sources import FORWARDED_FOR, Proxies
from rota.core.replica.forwarding import Submitted
from rota.core.replica.ports import Answer, Cancel, unpark
from rota.protocol import tracing
from rota.protocol.calls import CALLS
from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    VerifyFence,
    parks_for_ms,
)
from rota.protocol.wire.routes import REQUESTS
from rota.server.access.identity import CURRENT, NO_CREDENTIALS, ORIGIN, Credentials, Identity
from rota.server.http.credentials import NOTE_HEADER
from rota.server.http.dependencies import Backend, Names
from rota.server.http.heartbeats import OPERATION, Batch, read_heartbeat, render_heartbeats
from rota.server.http.origins import OriginCheck
from rota.server.http.rendered import CALLER_GONE, Header, Rendered, render_answer, render_failure
from rota.server.observability.metrics import Count, Metrics
from rota.server.ports import ServedCoordinator

MAX_BODY_BYTES = 64 * 1024

MemberCall: TypeAlias = Submitted | VerifyFence
_CALLS: dict[bytes, type[MemberCall]] = {
    b"heartbeat": Heartbeat,
    b"offsets": CommitOffsets,
    b"join": JoinGroup,
    b"sync": SyncGroup,
    b"leave": LeaveGroup,
    b"fence": VerifyFence,
}
_PATH = re.compile(rf"/v1/namespaces/({NAMESPACE_PATTERN})/groups/({NAME_PATTERN})/([a-z]+)".encode())
_FORWARDED_FOR = FORWARDED_FOR.encode()
_UNUSUAL = frozenset(
    {b"content-encoding", b"expect", b"origin", b"sec-fetch-site", b"transfer-encoding", b"upgrade", NOTE_HEADER}
)
"""Headers that change what a request means, beside those that are read. All others mean nothing on either way."""


class Head(NamedTuple):
    """The head of a plain call."""

    call: type[MemberCall]
    names: Names
    authorization: bytes
    origin: str
    """The address that the call comes from, past proxies that are trusted."""


@dataclass
class MemberCalls:
    """What the connections of a server have in common."""

    backend: Backend
    origins: OriginCheck
    proxies: Proxies = field(default_factory=Proxies)
    """The proxies that may name a client's address. The server sets them before the first connection."""

    def sender(self, host: str, certificate: Caller | None) -> Sender:
        """The other end of a connection, at this address, with the caller that its certificate names."""
        return Sender(self, host, certificate)


class Sender:
    """The other end of one connection."""

    def __init__(self, calls: MemberCalls, host: str, certificate: Caller | None) -> None:
        self._calls = calls
        self._backend, self._admission = calls.backend, calls.backend.admission
        self._host = host
        self._is_proxy = calls.proxies.trust(host)
        self._certificate = certificate
        self._max_body_bytes = min(MAX_BODY_BYTES, calls.backend.limits.request_max_bytes)
        self._accepted_host: bytes | None = None
        """The `Host` of the latest call: to judge it anew takes longer than to answer a heartbeat."""

    def plan(self, parser: httptools.HttpRequestParser, url: bytes, headers: Sequence[Header]) -> Head | None:
        """The head of a request, if it is that of a plain call."""
        matched = _PATH.fullmatch(url)
        if matched is None or parser.get_method() != b"POST" or tracing.spans is not None:
            return None
        namespace, group_id, name = matched.groups()
        call, found = _CALLS.get(name), dict(headers)
        if call is None or len(found) < len(headers) or not _UNUSUAL.isdisjoint(found):
            return None
        if found.get(b"content-type") != b"application/json":
            return None
        if not 0 < int(found.get(b"content-length", b"0")) <= self._max_body_bytes or not parser.should_keep_alive():
            return None
        connection = found.get(b"connection")
        # Without this header HTTP/1.1 alone keeps a connection.
        if connection is not None and (connection.lower() != b"keep-alive" or parser.get_http_version() != "1.1"):
            return None
        host = found.get(b"host", b"")
        if host != self._accepted_host:
            if not self._calls.origins.accepts(host):
                return None
            self._accepted_host = host
        origin = self._host
        if self._is_proxy and _FORWARDED_FOR in found:
            origin = self._calls.proxies.client_of(origin, [found[_FORWARDED_FOR].decode("latin-1")])
        names = {"namespace": namespace.decode(), "group_id": group_id.decode()}
        return Head(call, names, found.get(b"authorization", b""), origin)

    def answer(self, head: Head, body: bytes) -> Rendered | PendingAnswer | None:
        """The answer to a plain call, or what will have it; None if the call has to go through the router."""
        guard = self._backend.guard
        if guard is None:
            return self._answer(head, body)
        credentials = NO_CREDENTIALS
        if head.authorization or self._certificate is not None:
            credentials = Credentials(head.authorization, self._certificate)
        identity = guard.authenticator.known(credentials)
        # A context of its own, as that of a request's task: in it the guard finds the caller, also later.
        return None if identity is None else Context().run(self._answer_to, identity, head, body)

    def _answer_to(self, identity: Identity, head: Head, body: bytes) -> Rendered | PendingAnswer | None:
        CURRENT.set(identity)
        ORIGIN.set(head.origin)
        return self._answer(head, body)

    def _answer(self, head: Head, body: bytes) -> Rendered | PendingAnswer | None:
        backend, operation = self._backend, CALLS[head.call].operation
        try:
            self._admission.admit_unread(head.call, *head.names.values())
            request = _read(head, body, backend.limits)
            if isinstance(request, Batch):
                return None
            answer: Answer | None = None
            if isinstance(request, (Heartbeat, HeartbeatMany)):
                answer = backend.coordinator.try_heartbeat(request)
            if isinstance(request, VerifyFence):
                answer = backend.coordinator.try_read(request)
                if answer is None:
                    return None
            elif answer is None:
                pending = PendingAnswer(request, operation, backend.metrics)
                pending.submit(backend.coordinator)
                return pending.rendered or pending
            rendered = _render(request, answer, backend.metrics)
        except RejectedRequest:
            # The router says why. The coordinator's rejections are answers.
            return None
        except Exception as error:
            # The parser would report it as bytes that are not HTTP.
            rendered = render_failure(error, operation)
        backend.metrics.request_answered(operation, rendered.code)
        return rendered


def _read(head: Head, body: bytes, limits: Limits) -> MemberCall | Batch:
    """The request of a plain call; a batch for heartbeats that the router answers."""
    if head.call is Heartbeat:
        beats = read_heartbeat(body, head.names, limits)
        is_plain = isinstance(beats, Batch) and beats.request.members and not beats.wait_ms
        return beats.request if isinstance(beats, Batch) and is_plain else beats
    given = {"host": head.origin} if head.call is JoinGroup else {}
    request: MemberCall = REQUESTS[head.call].read(body, limits, **head.names, **given)
    return request


def _render(request: MemberCall, answer: Answer, metrics: Metrics) -> Rendered:
    if isinstance(request, (Heartbeat, HeartbeatMany)):
        return render_heartbeats(request, answer, metrics)
    return render_answer(answer)


class PendingAnswer:
    """An answer that is not there yet: its call is not durable, waits for other members, or is another replica's.

    It takes the place of uvicorn's RequestResponseCycle on its connection, and has its names. So a client that closes,
    sends its next requests or stops reading meanwhile, a server that stops, and the deadlines of a connection find what
    they find for any other request. A call that is parked holds no task and no future here, and ends with its client.
    """

    # Most of these stay as they are here. `message_event` is never awaited, and `body` never read.
    message_event = asyncio.Event()
    body: bytes | bytearray = b""
    response_started = response_complete = disconnected = False
    keep_alive = True
    rendered: Rendered | None = None
    write: Callable[[PendingAnswer, Rendered], None] | None = None
    """Set by the connection if the answer is not known at once."""
    _waiters: Count | None = None
    """The calls that are parked, with this one among them."""
    _cancel: Cancel | None = None

    def __init__(self, request: Submitted, operation: str, metrics: Metrics) -> None:
        self._request = request
        self._operation = operation
        self._metrics = metrics

    def submit(self, coordinator: ServedCoordinator) -> None:
        """Start the call. One that may park counts as parked, and is cancelled when its client is gone."""
        try:
            cancel = coordinator.submit(self._request, self._answered)
        except Exception as error:
            self._end(render_failure(error, self._operation))
            return
        if self.rendered is None and parks_for_ms(self._request) > 0:
            waiters = self._metrics.waiters(OPERATION if isinstance(self._request, Heartbeat) else self._operation)
            self._waiters, self._cancel = waiters, cancel
            waiters.number += 1

    def hang_up(self) -> None:
        """The connection has ended. A call that does not park is still answered: it may have changed something."""
        if self._waiters is None or self.rendered is not None:
            return
        cancel, self.rendered = self._cancel, CALLER_GONE
        self._unpark()
        self._metrics.request_answered(self._operation, "GONE")
        unpark(cancel)

    def _answered(self, answer: Answer) -> None:
        if self.rendered is CALLER_GONE:
            return
        try:
            rendered = _render(self._request, answer, self._metrics)
        except Exception as error:
            rendered = render_failure(error, self._operation)
        self._end(rendered)

    def _end(self, rendered: Rendered) -> None:
        """Keep the only answer, and write it: a second one would be read as that of the next request."""
        assert self.rendered is None
        self.rendered = rendered
        if self._waiters is not None:
            self._unpark()
        self._metrics.request_answered(self._operation, rendered.code)
        if self.write is not None and not self.disconnected:
            self.write(self, rendered)

    def _unpark(self) -> None:
        assert self._waiters is not None
        self._waiters.number -= 1
        # The call knows its answer as well: the two would live until the collector comes.
        self._cancel = None
