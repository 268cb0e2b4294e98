"""What each route does between decoding and encoding. No decisions: those are the coordinator's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest

from rota.api.access.guard import Admission, Guard
from rota.api.access.inquiry import (
    CAN_I_QUERY,
    Namespaces,
    NamespacesReply,
    answer_to,
    known_caller,
    readable,
)
from rota.api.beginning import EARLIEST, After, from_earliest
from rota.api.http.bodies import check_no_query, receive_document
from rota.api.http.draining import Draining
from rota.api.http.rendered import Rendered, render_answer, render_document, render_json, render_problem
from rota.api.http.shapes import JOURNAL_QUERY, REMOVE_MEMBER_QUERY, Coordinator, Event, JournalReply
from rota.api.http.waiting import call_while_there
from rota.api.ports import ServedCoordinator
from rota.observability.metrics import METRICS_MEDIA_TYPE, Metrics
from rota.protocol.calls import Call
from rota.protocol.errors import ErrorCode, no_member
from rota.protocol.limits import Limits
from rota.protocol.messages import JoinGroup, LeaveGroup, LeaveReply, LeavingMember, Request
from rota.replica.ports import JournalEvent
from rota.wire.routes import REQUESTS, decode_path, read_query
from rota.wire.shapes import invalid
from rota.wire.status import Remedy

FenceKeys = Callable[[], Mapping[str, Any]]
"""The JWK set of the keys that sign fencing tokens, as it is now."""
JWKS_HEADERS = ((b"content-type", b"application/jwk-set+json"), (b"cache-control", b"max-age=60"))


async def no_namespaces() -> list[str]:
    """Without a store that lists them, there are none to be listed."""
    return []


def no_fence_keys() -> Mapping[str, Any]:
    return {"keys": []}


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers share the coordinator; errors are raised, for `outcome_of` to render."""

    coordinator: ServedCoordinator
    limits: Limits
    metrics: Metrics
    draining: Draining
    fence_keys: FenceKeys
    namespaces: Namespaces
    guard: Guard | None
    admission: Admission
    needs_restart: Callable[[], bool]

    async def call(self, http: HttpRequest, call: Call) -> Rendered:
        """Any request of the protocol: decode it as its row says, call, encode."""
        if call.has_body:
            request = await self._read_body(http, call.request)
        else:
            request = read_query(call.request, http.path_params, http.query_params.multi_items(), self.limits)
        answer = await call_while_there(self.coordinator, request, http.receive, self.metrics, call.operation)
        return render_answer(answer)

    async def _read_body(self, http: HttpRequest, kind: type[Request]) -> Request:
        check_no_query(http.scope)
        names = decode_path(http.path_params)
        self.admission.admit_unread(kind, names["namespace"], names.get("group_id") or names.get("topic", ""))
        request: Request = await receive_document(
            http.scope,
            http.receive,
            self.limits.request_max_bytes,
            lambda body: REQUESTS[kind].read(body, self.limits, **names),
        )
        if isinstance(request, JoinGroup):
            return replace(request, host=http.client.host if http.client else "")
        return request

    async def remove_member(self, http: HttpRequest) -> Rendered:
        """One member, so its own error is the answer's."""
        path = decode_path(http.path_params)
        query = REMOVE_MEMBER_QUERY.from_query(http.query_params.multi_items())
        reason = REMOVE_MEMBER_QUERY.decode(query, self.limits).reason
        leaving = LeavingMember(path.pop("member_id"), None, reason)
        answer = await self.coordinator.call(LeaveGroup(path["namespace"], path["group_id"], (leaving,), by_admin=True))
        left = answer.reply
        if isinstance(left, LeaveReply) and left.members and left.members[0].error is not ErrorCode.NONE:
            code, detail = left.members[0].error, ""
            extra: dict[str, Any] = {"revision": answer.revision, "epoch": answer.epoch}
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                detail = no_member(leaving.member_id, path["group_id"], path["namespace"])
                extra["remedy"] = Remedy.CHECK_NAME
            return render_problem(code, detail, **extra)
        return render_answer(answer)

    async def locate(self, http: HttpRequest) -> Rendered:
        check_no_query(http.scope)
        owner = self.coordinator.locate(**decode_path(http.path_params))
        return render_json(msgspec.json.encode(Coordinator.of(owner)))

    async def read_journal(self, http: HttpRequest) -> Rendered:
        query = JOURNAL_QUERY.decode(JOURNAL_QUERY.from_query(http.query_params.multi_items()), self.limits)
        if query.shard >= self.coordinator.shard_count:
            raise invalid(f"shard must be from 0 to {self.coordinator.shard_count - 1}")
        after, events = await self._lines(query.shard, query.after, query.limit)
        revision = events[-1].seq if events else after
        epoch = events[-1].epoch if events else 0
        return render_json(msgspec.json.encode(JournalReply(tuple(map(Event.of, events)), revision, epoch)))

    async def _lines(self, shard_id: int, after: After, limit: int) -> tuple[int, list[JournalEvent]]:
        async def read(after_revision: int) -> tuple[int, list[JournalEvent]]:
            return after_revision, await self.coordinator.events(shard_id, after_revision, limit)

        return await from_earliest(read) if after == EARLIEST else await read(after)

    async def who_am_i(self, http: HttpRequest) -> Rendered:
        check_no_query(http.scope)
        return render_json(msgspec.json.encode(known_caller(self.guard)))

    async def list_namespaces(self, http: HttpRequest) -> Rendered:
        check_no_query(http.scope)
        return render_json(msgspec.json.encode(NamespacesReply(tuple(await readable(self.namespaces, self.guard)))))

    async def can_i(self, http: HttpRequest) -> Rendered:
        question = CAN_I_QUERY.decode(CAN_I_QUERY.from_query(http.query_params.multi_items()), self.limits)
        return render_json(msgspec.json.encode(answer_to(question, self.guard)))

    async def publish_keys(self, _http: HttpRequest) -> Rendered:
        """The public keys, for verifying fencing tokens."""
        return Rendered(200, JWKS_HEADERS, json.dumps(self.fence_keys()).encode())

    async def healthz(self, _http: HttpRequest) -> Rendered:
        """The process is up, its event loop runs, and a restart would not help. A store that is away is no failure."""
        if self.needs_restart():
            return render_problem(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the store takes no write of this process")
        return render_document({"outcome": "ok"})

    async def readyz(self, _http: HttpRequest) -> Rendered:
        """Whether this replica can take part. Never whether it leads anything."""
        if self.draining.begun:
            return render_problem(ErrorCode.COORDINATOR_NOT_AVAILABLE, "draining")
        ready, why_not = self.coordinator.ready()
        if not ready:
            return render_problem(ErrorCode.COORDINATOR_NOT_AVAILABLE, why_not)
        return render_document({"outcome": "ready"})

    async def scrape(self, _http: HttpRequest) -> Rendered:
        if self.guard is not None:
            self.guard.admit_to_metrics()
        return Rendered(200, ((b"content-type", METRICS_MEDIA_TYPE.encode()),), self.metrics.exposition())
