"""Path operations outside of the protocol: the caller's permissions, the journal, probes, keys and metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from rota.core.access.rules import SCRAPE
from rota.core.replica.ports import JournalEvent
from rota.protocol.calls import GROUP_PATH, Tag
from rota.protocol.errors import ErrorCode as E
from rota.protocol.wire.problems import PRUNED_EVENT
from rota.protocol.wire.shapes import invalid
from rota.server.access.inquiry import (
    CAN_I_QUERY,
    NamespacesReply,
    Question,
    answer_to,
    known_caller,
    readable,
)
from rota.server.beginning import EARLIEST, from_earliest
from rota.server.http.dependencies import GroupNames, Operation, UsesBackend, no_query, query_of
from rota.server.http.openapi import OPEN, OPTIONAL, Responses, done, done_as, only, problems, query
from rota.server.http.rendered import Rendered, render_document, render_json, render_problem
from rota.server.http.streams import (
    JOURNAL_QUERY,
    WATCH_QUERY,
    Event,
    JournalQuery,
    JournalReply,
    open_stream,
)
from rota.server.observability.metrics import METRICS_MEDIA_TYPE

DOCUMENT_PATH = "/openapi.json"
_JWKS_MEDIA_TYPE = "application/jwk-set+json"
_JWKS_HEADERS = ((b"content-type", _JWKS_MEDIA_TYPE.encode()), (b"cache-control", b"max-age=60"))
_JWK_SET = {
    "type": "object",
    "required": ["keys"],
    "properties": {"keys": {"type": "array", "items": {"type": "object"}}},
}
_STREAM = (
    "One server-sent event per journal line: `event` is its kind, `id` its revision, `data` an Event. "
    "`server-drain` means: this server goes away, connect again. `interrupted` means: connect again; where the "
    "caller's credentials or rules ended the stream, its `data` is the Problem that a new call has. "
    "A comment is sent every 15 s of silence. "
    f"`{PRUNED_EVENT}` ends a stream where the journal does not have the next lines; its `data` is the Problem "
    "that 410 has."
)
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "What a browser sends when it reconnects; wins over `after`.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
}

access = APIRouter(route_class=Operation)
events = APIRouter(route_class=Operation)
server = APIRouter(route_class=Operation)


@access.get(
    "/v1/whoami",
    operation_id="whoAmI",
    tags=[Tag.ACCESS],
    summary="The caller's identity, its proof, and the rules that apply to it.",
    dependencies=[Depends(no_query)],
    responses=done("WhoAmIReply") | only(problems(), 401, 500),
    openapi_extra=OPTIONAL,
)
async def who_am_i(backend: UsesBackend) -> Response:
    return _json(known_caller(backend.guard))


@access.get(
    "/v1/namespaces",
    operation_id="namespacesList",
    tags=[Tag.GROUPS],
    summary="The namespaces that the caller may read.",
    dependencies=[Depends(no_query)],
    responses=done("NamespacesReply") | only(problems(), 400, 401, 500, 503),
    openapi_extra=OPTIONAL,
)
async def list_namespaces(backend: UsesBackend) -> Response:
    return _json(NamespacesReply(tuple(await readable(backend.namespaces, backend.guard))))


@access.get(
    "/v1/can-i",
    operation_id="canI",
    tags=[Tag.ACCESS],
    summary="Whether the rules let the caller do this, and which one decides.",
    responses=done("CanIReply") | only(problems(E.INVALID_GROUP_ID), 400, 401, 500),
    openapi_extra=query(CAN_I_QUERY) | OPTIONAL,
)
async def can_i(backend: UsesBackend, question: Annotated[Question, Depends(query_of(CAN_I_QUERY))]) -> Response:
    return _json(answer_to(question, backend.guard))


@events.get(
    GROUP_PATH + "/events",
    operation_id="groupsWatch",
    tags=[Tag.EVENTS],
    summary="Follow a group's journal, live.",
    responses=done_as("text/event-stream", _STREAM) | problems(E.INVALID_GROUP_ID, E.REVISION_OUT_OF_RANGE),
    response_class=Response,
    openapi_extra={"parameters": [*query(WATCH_QUERY)["parameters"], _LAST_EVENT_ID]},
)
async def watch_group(http: HttpRequest, backend: UsesBackend, names: GroupNames) -> Response:
    return await open_stream(http, backend, **names)


@events.get(
    "/v1/events",
    operation_id="journalRead",
    tags=[Tag.EVENTS],
    summary="Read a shard's journal, in order and without gaps.",
    responses=done("JournalReply") | problems(E.REVISION_OUT_OF_RANGE),
    openapi_extra=query(JOURNAL_QUERY),
)
async def read_journal(
    backend: UsesBackend, asked: Annotated[JournalQuery, Depends(query_of(JOURNAL_QUERY))]
) -> Response:
    coordinator = backend.coordinator
    if asked.shard >= coordinator.shard_count:
        raise invalid(f"shard must be from 0 to {coordinator.shard_count - 1}")

    async def read(after: int) -> tuple[int, list[JournalEvent]]:
        return after, await coordinator.events(asked.shard, after, asked.limit)

    after, lines = await (from_earliest(read) if asked.after == EARLIEST else read(asked.after))
    revision, epoch = (lines[-1].seq, lines[-1].epoch) if lines else (after, 0)
    return _json(JournalReply(tuple(map(Event.of, lines)), revision, epoch))


def _probe(outcome: str) -> Responses:
    schema = {"type": "object", "required": ["outcome"], "properties": {"outcome": {"const": outcome}}}
    return done_as("application/json", "Yes.", schema) | only(problems(), 500, 503)


@server.get(
    "/healthz",
    operation_id="healthz",
    tags=[Tag.SERVER],
    summary="The process is up, and a restart would not help it.",
    responses=_probe("ok"),
    openapi_extra=OPEN,
)
async def healthz(backend: UsesBackend) -> Response:
    """The process is up, its event loop runs, and a restart would not help. A store that is away is no failure."""
    if backend.needs_restart:
        return _unavailable("the store takes no write of this process")
    return render_document({"outcome": "ok"}).as_response()


@server.get(
    "/readyz",
    operation_id="readyz",
    tags=[Tag.SERVER],
    summary="This replica is ready, whether or not it leads a group.",
    responses=_probe("ready"),
    openapi_extra=OPEN,
)
async def readyz(backend: UsesBackend) -> Response:
    """Whether this replica can take part. Never whether it leads anything."""
    ready, why_not = (False, "draining") if backend.draining.begun else backend.coordinator.ready()
    return render_document({"outcome": "ready"}).as_response() if ready else _unavailable(why_not)


@server.get(
    "/.well-known/jwks.json",
    operation_id="fenceKeys",
    tags=[Tag.FENCES],
    summary="The public keys that fencing tokens are checked with.",
    responses=done_as(_JWKS_MEDIA_TYPE, "A JWK set; empty without keys.", _JWK_SET) | only(problems(), 500),
    response_class=Response,
    openapi_extra=OPEN,
)
async def publish_keys(backend: UsesBackend) -> Response:
    return Rendered(200, _JWKS_HEADERS, json.dumps(backend.fence_keys()).encode()).as_response()


@server.get(
    "/metrics",
    operation_id="metrics",
    tags=[Tag.SERVER],
    summary="Metrics for Prometheus.",
    responses=done_as(METRICS_MEDIA_TYPE, "Prometheus' text format.") | only(problems(), 401, 403, 500),
    response_class=Response,
)
async def scrape(backend: UsesBackend) -> Response:
    if backend.guard is not None:
        backend.guard.admit_call(SCRAPE)
    return Rendered(200, ((b"content-type", METRICS_MEDIA_TYPE.encode()),), backend.metrics.exposition()).as_response()


@server.get(DOCUMENT_PATH, include_in_schema=False, operation_id="openapi")
async def publish_document(http: HttpRequest) -> Response:
    """The OpenAPI document. It is written once: that takes many times what an answer may hold the loop up for."""
    state = http.app.state
    if not hasattr(state, "document"):
        state.document = render_document(await asyncio.to_thread(http.app.openapi))
    document: Rendered = state.document
    return document.as_response()


def _json(reply: msgspec.Struct) -> Response:
    return render_json(msgspec.json.encode(reply)).as_response()


def _unavailable(why: str) -> Response:
    return render_problem(E.COORDINATOR_NOT_AVAILABLE, why).as_response()
