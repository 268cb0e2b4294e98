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
from typing import TypeAlias

import httptools

from rota.core.access.rules import Caller
from rota.core.access.sources import FORWARDED_FOR, Proxies
from rota.core.replica.forwarding import Submitted
from rota.core.replica.ports import Answer, Cancel
from rota.protocol import tracing
from rota.protocol.calls import CALLS, Call
from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN
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
from rota.server.access.open_work import unpark
from rota.server.http.credentials import NOTE_HEADER
from rota.server.http.dependencies import Backend
from rota.server.http.heartbeats import OPERATION, Batch, read_heartbeat, render_heartbeats
from rota.server.http.origins import OriginCheck
from rota.server.http.rendered import CALLER_GONE, Header, Rendered, render_answer, render_failure
from rota.server.observability.metrics import Count, Metrics
from rota.server.ports import ServedCoordinator

MAX_BODY_BYTES = 64 * 1024

MemberCall: TypeAlias = Submitted | VerifyFence
_CALLS: dict[bytes, Call] = {
    name: CALLS[kind]
    for name, kind in (
        (b"heartbeat", Heartbeat),
        (b"offsets", CommitOffsets),
        (b"join", JoinGroup),
        (b"sync", SyncGroup),
        (b"leave", LeaveGroup),
        (b"fence", VerifyFence),
    )
}
_PATH = re.compile(rf"/v1/namespaces/({NAMESPACE_PATTERN})/groups/({NAME_PATTERN})/([a-z]+)".encode())
_FORWARDED_FOR = FORWARDED_FOR.encode()
_UNUSUAL = frozenset(
    {b"content-encoding", b"expect", b"origin", b"sec-fetch-site", b"transfer-encoding", b"upgrade", NOTE_HEADER}
)
"""Headers that change what a request means, beside those that are read. All others mean nothing on either way."""


@dataclass
class MemberCalls:
    """What the connections of a server have in common."""

    backend: Backend
    origins: OriginCheck
    proxies: Proxies = field(default_factory=Proxies)
    """The proxies that may name a client's address. The server sets them before the first connection."""


class Sender:
    """The other end of a connection at `host`, and the plain call that arrives from it."""

    _call: Call
    _namespace: str
    _group_id: str
    _authorization: bytes
    _origin: str
    """The address that the call comes from, past proxies that are trusted."""

    def __init__(self, calls: MemberCalls, host: str, certificate: Caller | None) -> None:
        """`certificate` is the caller that the connection's certificate names."""
        self._calls = calls
        self._backend, self._admission = calls.backend, calls.backend.admission
        self._host = host
        self._is_proxy = calls.proxies.trust(host)
        self._certificate = certificate
        self._max_body_bytes = min(MAX_BODY_BYTES, calls.backend.limits.request_max_bytes)
        self._accepted_host: bytes | None = None
        """The `Host` of the latest call: to judge it anew takes longer than to answer a heartbeat."""

    def plan(self, parser: httptools.HttpRequestParser, url: bytes, headers: Sequence[Header]) -> bool:
        """Keep the head of a request if it is that of a plain call: `answer` has its body."""
        matched = _PATH.fullmatch(url)
        if matched is None or tracing.spans is not None:
            return False
        namespace, group_id, name = matched.groups()
        call, found = _CALLS.get(name), dict(headers)
        if (
            call is None
            or len(found) < len(headers)
            or not _UNUSUAL.isdisjoint(found)
            or found.get(b"content-type") != b"application/json"
            or not 0 < int(found.get(b"content-length", b"0")) <= self._max_body_bytes
            or parser.get_method() != b"POST"
            or not parser.should_keep_alive()
        ):
            return False
        connection = found.get(b"connection")
        # Without this header HTTP/1.1 alone keeps a connection.
        if connection is not None and (connection.lower() != b"keep-alive" or parser.get_http_version() != "1.1"):
            return False
        host = found.get(b"host", b"")
        if host != self._accepted_host:
            if not self._calls.origins.accepts(host):
                return False
            self._accepted_host = host
        self._origin = self._host
        if self._is_proxy and _FORWARDED_FOR in found:
            self._origin = self._calls.proxies.client_of(self._host, [found[_FORWARDED_FOR].decode("latin-1")])
        self._call, self._authorization = call, found.get(b"authorization", b"")
        self._namespace, self._group_id = namespace.decode(), group_id.decode()
        return True

    def answer(self, body: bytes) -> Rendered | PendingAnswer | None:
        """The answer to the planned call, or what will have it; None if the call has to go through the router."""
        guard = self._backend.guard
        if guard is None:
            return self._answer(body)
        credentials = NO_CREDENTIALS
        if self._authorization or self._certificate is not None:
            credentials = Credentials(self._authorization, self._certificate)
        identity = guard.authenticator.known(credentials)
        # A context of its own, as that of a request's task: in it the guard finds the caller, also later.
        return None if identity is None else Context().run(self._answer_to, identity, body)

    def _answer_to(self, identity: Identity, body: bytes) -> Rendered | PendingAnswer | None:
        CURRENT.set(identity)
        ORIGIN.set(self._origin)
        return self._answer(body)

    def _answer(self, body: bytes) -> Rendered | PendingAnswer | None:
        backend, call = self._backend, self._call
        metrics = backend.metrics
        try:
            self._admission.admit_unread(call.request, self._namespace, self._group_id)
            request = self._read(body)
            if request is None:
                return None
            answer: Answer | None = None
            if isinstance(request, (Heartbeat, HeartbeatMany)):
                answer = backend.coordinator.try_heartbeat(request)
            elif isinstance(request, VerifyFence):
                answer = backend.coordinator.try_read(request)
                if answer is None:
                    return None
            if answer is None:
                assert not isinstance(request, VerifyFence)
                pending = PendingAnswer(request, call.operation, metrics)
                pending.submit(backend.coordinator)
                return pending.rendered or pending
            rendered = _render(request, answer, metrics)
        except RejectedRequest:
            # The router says why. The coordinator's rejections are answers.
            return None
        except Exception as error:
            # The parser would report it as bytes that are not HTTP.
            rendered = render_failure(error, call.operation)
        metrics.request_answered(call.operation, rendered.code)
        return rendered

    def _read(self, body: bytes) -> MemberCall | None:
        """The request of the planned call; None if the router has to answer it."""
        kind, limits = self._call.request, self._backend.limits
        names = {"namespace": self._namespace, "group_id": self._group_id}
        if kind is Heartbeat:
            beats = read_heartbeat(body, names, limits)
            if not isinstance(beats, Batch):
                return beats
            return beats.request if beats.request.members and not beats.wait_ms else None
        given = {"host": self._origin} if kind is JoinGroup else {}
        request: MemberCall = REQUESTS[kind].read(body, limits, **names, **given)
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
