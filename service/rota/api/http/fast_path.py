"""Answers the calls that come most often from the parser's callback: without a task, a scope or a middleware.

A call is answered here where it is a plain request that arrived whole, from a caller that is known. Heartbeats and
reads are answered at once where the shard is in this process and its memory durable. Commits, joins, syncs, leaves and
heartbeats that wait are submitted, and their answers owed (ADR 93). For any other call `answer` returns None, and the
call takes the ordinary way from its beginning. Nothing is counted or charged before it is certain that the answer is
given here. Both ways have the rules of reading, the guard, the coordinator, the metrics and the renderer in common, so
that they differ in cost only (ADR 79).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rota.access.caller import Caller
from rota.access.proxies import FORWARDED_FOR, Proxies
from rota.api.access.guard import Guard, GuardedCoordinator, RepeatedHeartbeat
from rota.api.access.identity import CURRENT, FRESH_S, NO_CREDENTIALS, ORIGIN, Credentials, Identity
from rota.api.http.credentials import NOTE_HEADER
from rota.api.http.heartbeats import OPERATION, Batch, HeartbeatEndpoint, batch_document, batch_heads, read_heartbeat
from rota.api.http.origins import OriginCheck
from rota.api.http.owed import OwedAnswer
from rota.api.http.rendered import (
    JSON_HEADERS,
    Header,
    Rendered,
    lines_of,
    render_answer,
    render_failure,
    render_json,
)
from rota.api.ports import ServedCoordinator
from rota.observability import tracing
from rota.observability.metrics import Count, Metrics
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    CommitOffsets,
    GetLeader,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    LeaveGroup,
    Request,
    SyncGroup,
    VerifyFence,
    parks_for_ms,
)
from rota.replica.ports import Answer, Cancel
from rota.wire.documents import parse_document
from rota.wire.json_commits import read_plain_commit
from rota.wire.json_heartbeats import read_plain
from rota.wire.json_joins import read_plain_join, read_plain_sync
from rota.wire.routes import ROUTES

MAX_BODY_BYTES = 64 * 1024
MAX_REMEMBERED = 32
"""Requests of one connection, and heads: a process often has several members on one."""
MAX_REMEMBERED_BYTES = 16 * 1024
"""Of one connection."""
REMEMBERED_BYTES_IN_ALL = 16 * 1024 * 1024
"""Of all connections of a process. What is kept of a request takes up to four times its bytes."""

BEATS_KEPT = 1_000
"""Answers to heartbeats of a process."""

_PATH = re.compile(
    rf"/v1/namespaces/({NAMESPACE_PATTERN})/groups/({NAME_PATTERN})/(heartbeat|offsets|join|sync|leave|fence|leader)".encode()
)
_LOOKED_AT = frozenset(
    {
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"transfer-encoding",
        b"upgrade",
        FORWARDED_FOR.encode(),
        NOTE_HEADER,
    }
)
"""Headers that change what a request means. All others mean nothing on the ordinary way either."""
_FORWARDED_FOR = FORWARDED_FOR.encode()
_END_OF_HEAD = b"\r\n\r\n"


def _length(size: int) -> bytes:
    """The end of an answer's head."""
    return b"content-length: %d\r\n\r\n" % size


_LENGTHS = [_length(size) for size in range(1_024)]
"""Those of most answers: to format the whole answer takes three times as long."""


Read = VerifyFence | GetLeader
Waiting = CommitOffsets | JoinGroup | SyncGroup | LeaveGroup
"""Requests that as a rule are answered later: once they are durable, or once other members have called."""
FastRequest = Heartbeat | HeartbeatMany | Waiting | Read
FastCall = type[Heartbeat | Waiting | VerifyFence | GetLeader]


class Head(NamedTuple):
    """The head of a request that may be answered here, once its body is there."""

    call: FastCall
    namespace: str
    group_id: str
    length: int
    authorization: bytes
    origin: str
    """The address that the call comes from, past proxies that are trusted."""


_CALLS: dict[tuple[bytes, bytes], FastCall] = {
    (b"POST", b"heartbeat"): Heartbeat,
    (b"POST", b"offsets"): CommitOffsets,
    (b"POST", b"join"): JoinGroup,
    (b"POST", b"sync"): SyncGroup,
    (b"POST", b"leave"): LeaveGroup,
    (b"POST", b"fence"): VerifyFence,
    (b"GET", b"leader"): GetLeader,
}


_PLAIN: Mapping[FastCall, Callable[[dict[str, Any], Head, Limits], Heartbeat | Waiting | None]] = {
    Heartbeat: lambda document, head, _limits: read_plain(document, head.namespace, head.group_id),
    CommitOffsets: lambda document, head, limits: read_plain_commit(document, head.namespace, head.group_id, limits),
    JoinGroup: lambda document, head, limits: read_plain_join(
        document, head.namespace, head.group_id, head.origin, limits
    ),
    SyncGroup: lambda document, head, limits: read_plain_sync(document, head.namespace, head.group_id, limits),
}
"""Reads most bodies of a kind quickly; None for others."""


class Entered:
    """A caller of a connection: its identity for a moment, in a context in which the guard finds it."""

    __slots__ = ("context", "credentials", "identity", "known_until", "origin")

    def __init__(self, identity: Identity | None, credentials: Credentials, origin: str) -> None:
        self.identity = identity
        self.credentials = credentials
        self.origin = origin
        self.known_until = 0.0
        """By the monotonic clock. Then the identity is looked up again."""
        self.context = Context()
        if identity is not None:
            self.context.run(CURRENT.set, identity)
        if origin:
            self.context.run(ORIGIN.set, origin)


class Known:
    """A request that was answered here, ready to be asked again."""

    __slots__ = ("beat", "head", "is_owed", "lines", "request")

    def __init__(self, head: Head, request: Heartbeat | HeartbeatMany | Read) -> None:
        self.is_owed = False
        """Its last answer was: so this one will be, as a rule, and is not looked for here."""
        self.head = head
        self.request = request
        self.beat = None if isinstance(request, VerifyFence | GetLeader) else RepeatedHeartbeat(request)
        self.lines = batch_heads(request) if isinstance(request, HeartbeatMany) else []


class _Beat:
    """An answer to heartbeats, and what its bytes are while the headers that all answers share stay the same."""

    __slots__ = ("answer", "beats", "data", "default_headers", "rendered", "requests")

    def __init__(self, answer: Answer, requests: Count, beats: Count) -> None:
        """`requests` and `beats` count this answer, see `Metrics.heartbeat_requests`."""
        self.answer = answer
        self.rendered = render_answer(answer)
        self.requests = requests
        self.beats = beats
        self.data = b""
        self.default_headers: Sequence[Header] | None = None


class FastPath:
    """What the connections of a server have in common."""

    def __init__(
        self,
        coordinator: ServedCoordinator,
        limits: Limits,
        metrics: Metrics,
        guard: Guard | None,
        origins: OriginCheck,
        heartbeats: HeartbeatEndpoint,
        operations: Mapping[type[Request], str],
    ) -> None:
        """`operations` are the names under which metrics count requests."""
        self.coordinator = coordinator
        self.guarded = coordinator if isinstance(coordinator, GuardedCoordinator) else None
        self.limits = limits
        self.metrics = metrics
        self.guard = guard
        self.origins = origins
        self.heartbeats = heartbeats
        self.operations = operations
        self.proxies: Proxies | None = None
        """Those whose word on a client's address counts. Set before the first connection."""
        self.max_body_bytes = min(MAX_BODY_BYTES, limits.request_max_bytes)
        self.remembered_bytes = 0
        self._default_headers: Sequence[Header] | None = None
        self._ok_head = b""
        self._beats: dict[int, _Beat] = {}
        """Answers to heartbeats, by the `id` of those that are kept alive here: members of a group get the same object
        until something happens in it."""
        self._last_refusal: tuple[Rendered, Sequence[Header], bytes] | None = None

    def waiters(self, call: FastCall) -> Count:
        """Parked calls of this kind, as `call_while_there` counts them."""
        return self.metrics.waiters(OPERATION if call is Heartbeat else self.operations[call])

    def render_heartbeat(self, answer: Answer) -> Rendered:
        """One member's, which is counted by its result. Its request is not."""
        beat = self._beats.get(id(answer)) or self._keep(answer)
        beat.beats.number += 1
        return beat.rendered

    def answer_heartbeat(self, answer: Answer, default_headers: Sequence[Header]) -> bytes:
        """One member's, as it goes over the wire: it and its request are counted."""
        beat = self._beats.get(id(answer)) or self._keep(answer)
        beat.requests.number += 1
        beat.beats.number += 1
        if beat.default_headers is not default_headers:
            beat.data, beat.default_headers = self.bytes_of(beat.rendered, default_headers), default_headers
        return beat.data

    def _keep(self, answer: Answer) -> _Beat:
        if len(self._beats) >= BEATS_KEPT:
            self._beats.clear()
        counts = self.metrics.heartbeat_requests(self.operations[Heartbeat], answer.reply.error)
        beat = self._beats[id(answer)] = _Beat(answer, *counts)
        return beat

    def bytes_of(self, rendered: Rendered, default_headers: Sequence[Header], *, closes: bool = False) -> bytes:
        """An answer as it goes over the wire; it may say that the connection ends with it."""
        if rendered.headers is JSON_HEADERS and rendered.status == 200 and not closes:
            return self.ok(rendered.body, default_headers)
        last = self._last_refusal
        if last is not None and last[0] is rendered and last[1] is default_headers and not closes:
            return last[2]
        data = rendered.as_bytes(default_headers, closes=closes)
        if not closes:
            self._last_refusal = rendered, default_headers, data
        return data

    def ok(self, body: bytes, default_headers: Sequence[Header]) -> bytes:
        """An answer of 200, as it goes over the wire. The headers that all answers share change once a second."""
        if default_headers is not self._default_headers:
            lines = lines_of([*default_headers, *JSON_HEADERS])
            self._default_headers, self._ok_head = default_headers, b"".join([STATUS_LINE[200], *lines])
        size = len(body)
        return b"".join((self._ok_head, _LENGTHS[size] if size < len(_LENGTHS) else _length(size), body))


class FastConnection:
    """One connection: the identity of its caller for a moment, and its latest requests.

    A member sends the same bytes again and again. They mean the same each time, so they are not parsed and decoded
    anew. The guard and the group decide about each of them. Its commits have the same head, and another body each.
    """

    __slots__ = (
        "_accepted_host",
        "_bytes",
        "_entered",
        "_heads",
        "_host",
        "_latest",
        "_no_header",
        "_path",
        "_trusted",
        "known",
    )

    def __init__(self, path: FastPath, host: str, certificate: Caller | None) -> None:
        """`host` is the address of the other end, `certificate` the caller that the connection's certificate names."""
        self._path = path
        self._host = host
        self._trusted = path.proxies is not None and path.proxies.trust(host)
        self._accepted_host = b""
        """The `Host` of the latest request: to judge it anew takes longer than to answer a heartbeat."""
        self.known: dict[bytes, Known] = {}
        """Requests that are remembered, by their bytes."""
        self._heads: dict[bytes, Head] = {}
        """Heads of `Waiting` calls and of heartbeats that wait, by their bytes without the empty line."""
        self._bytes = 0
        self._latest: Known | Head | None = None
        """What the last `answer` has answered; its head, where the next request says something else."""
        self._no_header = NO_CREDENTIALS if certificate is None else Credentials(b"", certificate)
        self._entered = Entered(None, self._no_header, "")
        """The caller of the latest request; none at first."""

    # --- what the parser has ------------------------------------------------------------------------

    def plan(self, method: bytes, url: bytes, headers: Sequence[Header]) -> Head | None:
        """The head of a request, if it is one of a call that may be answered here."""
        matched = _PATH.fullmatch(url)
        call = _CALLS.get((method, matched[3])) if matched is not None else None
        if matched is None or call is None:
            return None
        host: bytes | None = None
        length, authorization, is_json = b"", b"", False
        hops: list[str] = []
        for name, value in headers:
            if name not in _LOOKED_AT:
                continue
            if name == b"host" and host is None:
                host = value
            elif name == b"content-length" and not length:
                length = value
            elif name == b"content-type" and not is_json and value == b"application/json":
                is_json = True
            elif name == b"authorization" and not authorization and value:
                authorization = value
            elif name == _FORWARDED_FOR:
                hops.append(value.decode("latin-1"))
            elif name != b"connection" or value.lower() != b"keep-alive":
                return None
        if host is None or (host != self._accepted_host and not self._path.origins.accepts(host)):
            return None
        self._accepted_host = host
        if call is GetLeader:
            if is_json or length:
                return None
        elif not (is_json and length.isdigit() and len(length) < 9 and 0 < int(length) <= self._path.max_body_bytes):
            return None
        origin = self._path.proxies.client_of(self._host, hops) if self._path.proxies and self._trusted else self._host
        return Head(call, matched[1].decode(), matched[2].decode(), int(length or 0), authorization, origin)

    def answer(self, head: Head, body: bytes, default_headers: Sequence[Header]) -> bytes | OwedAnswer | None:
        """The answer as it goes over the wire, or what will have it; None where the call takes the ordinary way."""
        self._latest = None
        if tracing.spans is not None or len(body) != head.length:
            return None
        guard, entered = self._path.guard, self._entered
        try:
            if guard is None:
                request = self._read(head, body)
            else:
                found = self._enter(head, time.monotonic())
                if found is None:
                    return None
                entered, request = found, found.context.run(self._read_admitted, guard, head, body)
        except RejectedRequest:
            return None
        if request is None:
            return None
        if isinstance(request, Waiting) or (isinstance(request, Heartbeat) and request.wait_ms):
            # Its head alone is remembered: a member's next request says something else.
            self._latest = head
            run: Callable[..., Any] = entered.context.run
            submit = partial(run, self._path.coordinator.submit, request)
            render = self._path.render_heartbeat if isinstance(request, Heartbeat) else render_answer
            return self._submit(submit, head.call, render, default_headers, parks=parks_for_ms(request) > 0)
        known = Known(head, request)
        answered = self.ask(known, default_headers)
        if answered is not None:
            self._latest = known
        return answered

    def ask(self, known: Known, default_headers: Sequence[Header]) -> bytes | OwedAnswer | None:
        """The same for a request that is read: one of `known`, whose bytes have arrived between two requests."""
        if tracing.spans is not None:
            return None
        path, request, beat, now_s = self._path, known.request, known.beat, 0.0
        answer: Answer | None = None
        if path.guarded is None:
            if beat is None:
                answer = self._read_now(known)
            elif not known.is_owed:
                answer = path.coordinator.try_heartbeat(beat.request)
        elif beat is None or (now_s := time.monotonic()) >= beat.fresh_until:
            answer = self._ask_guard(path.guarded, known)
        elif not known.is_owed:
            answer = path.guarded.try_repeated(beat, now_s)
        if answer is None:
            return self._submit_heartbeat(known, beat, now_s, default_headers) if beat is not None else None
        metrics, reply = path.metrics, answer.reply
        if beat is None:
            metrics.request_answered(path.operations[known.head.call], reply.error)
            return path.bytes_of(render_answer(answer), default_headers)
        if isinstance(request, HeartbeatMany):
            path.heartbeats.count_batch(request, answer)
            metrics.request_answered(path.operations[Heartbeat], ErrorCode.NONE)
            return path.ok(batch_document(known.lines, request, answer), default_headers)
        return path.answer_heartbeat(answer, default_headers)

    def answer_behind_head(self, data: bytes, default_headers: Sequence[Header]) -> bytes | OwedAnswer | None:
        """As `answer`, for the bytes of a whole request behind a head that is known; None for any other bytes."""
        head_bytes, _, body = data.partition(_END_OF_HEAD)
        head = self._heads.get(head_bytes)
        return None if head is None else self.answer(head, body, default_headers)

    def failed(self, head: Head, error: Exception, default_headers: Sequence[Header]) -> bytes:
        """The answer to a call that raised this, a bug of ours: the connection goes on."""
        operation = self._path.operations[head.call]
        rendered = render_failure(error, operation)
        self._path.metrics.request_answered(operation, rendered.code)
        return self._path.bytes_of(rendered, default_headers)

    def head_of(self, data: bytes) -> Head:
        """That of a request which is known, or whose head is."""
        known = self.known.get(data)
        return known.head if known is not None else self._heads[data.partition(_END_OF_HEAD)[0]]

    def bytes_of(self, rendered: Rendered, default_headers: Sequence[Header], *, closes: bool) -> bytes:
        """What an `OwedAnswer` was given, as it goes over the wire."""
        return self._path.bytes_of(rendered, default_headers, closes=closes)

    def remember(self, data: bytes) -> None:
        """The bytes of the request that the last `answer` has answered, and of nothing else."""
        latest, self._latest = self._latest, None
        if isinstance(latest, Known):
            if data not in self.known and self._has_room(data):
                self.known[data] = latest
        elif latest is not None:
            head_bytes, _, body = data.partition(_END_OF_HEAD)
            # Another parser might end the head elsewhere.
            if len(body) == latest.length and head_bytes not in self._heads and self._has_room(head_bytes):
                self._heads[head_bytes] = latest

    def forget(self) -> None:
        """Keep no request any more. To be called when the connection ends."""
        self._path.remembered_bytes -= self._bytes
        self._bytes = 0
        self.known.clear()
        self._heads.clear()

    # --- inside -------------------------------------------------------------------------------------

    def _has_room(self, data: bytes) -> bool:
        """Whether so many bytes more may be kept, which are counted then; all others may be forgotten for them."""
        path, size = self._path, len(data)
        if size > MAX_REMEMBERED_BYTES:
            return False
        if self._bytes + size > MAX_REMEMBERED_BYTES or len(self.known) + len(self._heads) >= MAX_REMEMBERED:
            self.forget()
        if path.remembered_bytes + size > REMEMBERED_BYTES_IN_ALL:
            return False
        self._bytes += size
        path.remembered_bytes += size
        return True

    def _enter(self, head: Head, now_s: float) -> Entered | None:
        """The caller, in a context as a request's task would have it; None where it has to be verified first.

        The credentials are looked up again after as long as the guard keeps a decision.
        """
        entered, guard = self._entered, self._path.guard
        assert guard is not None
        is_same = head.authorization == entered.credentials.authorization and head.origin == entered.origin
        if is_same and now_s < entered.known_until:
            return entered
        credentials = entered.credentials
        if head.authorization != credentials.authorization:
            credentials = self._no_header
            if head.authorization:
                credentials = Credentials(head.authorization, credentials.certificate)
        identity = guard.authenticator.known(credentials)
        if identity is None:
            return None
        if identity is not entered.identity or not is_same:
            entered = self._entered = Entered(identity, credentials, head.origin)
        # With the identity's own end where that comes first: then all is looked at again at once.
        fresh_until = identity.fresh_until
        entered.known_until = now_s + FRESH_S if fresh_until <= now_s else min(fresh_until, now_s + FRESH_S)
        return entered

    def _read_admitted(self, guard: Guard, head: Head, body: bytes) -> FastRequest | None:
        guard.admit_unread(head.call, head.namespace, head.group_id)
        return self._read(head, body)

    def _read(self, head: Head, body: bytes) -> FastRequest | None:
        limits, document = self._path.limits, parse_document(body)
        plain = _PLAIN.get(head.call)
        if plain is not None and (request := plain(document, head, limits)):
            return request
        path = {"namespace": head.namespace, "group_id": head.group_id}
        if head.call is not Heartbeat:
            if head.call is JoinGroup:
                path["host"] = head.origin
            read: Waiting | Read = ROUTES[head.call].shape.decode(document, limits, **path)
            return read
        beats = read_heartbeat(document, path, limits)
        if not isinstance(beats, Batch):
            return beats
        return beats.request if beats.request.members and not beats.wait_ms else None

    def _submit(
        self,
        submit: Callable[[Callable[[Answer], None]], Cancel | None],
        call: FastCall,
        render: Callable[[Answer], Rendered],
        default_headers: Sequence[Header],
        *,
        parks: bool = False,
    ) -> bytes | OwedAnswer:
        """What may have to wait is submitted without a task, and its answer owed."""
        path = self._path
        owed = OwedAnswer(path.metrics, path.operations[call], render)
        owed.submit(submit, path.waiters(call) if parks else None)
        return owed if owed.rendered is None else path.bytes_of(owed.rendered, default_headers)

    def _submit_heartbeat(
        self, known: Known, beat: RepeatedHeartbeat, now_s: float, default_headers: Sequence[Header]
    ) -> bytes | OwedAnswer | None:
        """Where its answer is not at hand: None unless the caller is admitted at this time of the monotonic clock."""
        path, guarded = self._path, self._path.guarded
        if guarded is None:
            submit = partial(path.coordinator.submit, beat.request)
        elif now_s < beat.fresh_until:
            submit = partial(guarded.submit_repeated, beat)
        else:
            return None
        render: Callable[[Answer], Rendered]
        render = partial(self._render_batch, known) if known.lines else path.render_heartbeat
        owed = OwedAnswer(path.metrics, path.operations[Heartbeat], render)
        owed.submit(submit, None)
        known.is_owed = owed.rendered is None
        return owed if owed.rendered is None else path.bytes_of(owed.rendered, default_headers)

    def _render_batch(self, known: Known, answer: Answer) -> Rendered:
        request = known.request
        assert isinstance(request, HeartbeatMany)
        self._path.heartbeats.count_batch(request, answer)
        return render_json(batch_document(known.lines, request, answer))

    def _read_now(self, known: Known) -> Answer | None:
        request: Any = known.request
        return self._path.coordinator.try_read(request)

    def _ask_guard(self, guarded: GuardedCoordinator, known: Known) -> Answer | None:
        """The same where the caller's rights are looked at again."""
        now_s, beat, guard = time.monotonic(), known.beat, self._path.guard
        entered = self._enter(known.head, now_s)
        if entered is None or entered.identity is None or guard is None:
            return None
        try:
            if beat is None:
                return entered.context.run(self._read_again, known)
            guard.renew(beat, entered.identity, entered.context, now_s)
            beat.fresh_until = min(beat.fresh_until, entered.known_until)
            return guarded.try_repeated(beat, now_s)
        except RejectedRequest:
            return None

    def _read_again(self, known: Known) -> Answer | None:
        """Of a caller that may have lost its rights since the request was read. Raises `RejectedRequest`."""
        head, guard = known.head, self._path.guard
        assert guard is not None
        guard.admit_unread(head.call, head.namespace, head.group_id)
        return self._read_now(known)
