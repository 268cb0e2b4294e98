"""The OpenAPI description of routes outside of the protocol: streams, the journal, owners of shards, probes."""

from __future__ import annotations

from typing import Any

from rota.api.access.inquiry import CAN_I_QUERY
from rota.api.http import openapi_parts as parts
from rota.api.http.shapes import JOURNAL_QUERY, REMOVE_MEMBER_QUERY, WATCH_QUERY
from rota.observability.metrics import METRICS_MEDIA_TYPE
from rota.protocol.calls import GROUP_PATH, Tag
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.wire.problems import PRUNED_EVENT

Json = dict[str, Any]

_GROUP_PARAMETERS = ("namespace", "group_id")
_REFUSALS = (ErrorCode.UNAUTHENTICATED, ErrorCode.GROUP_AUTHORIZATION_FAILED)
_UNAVAILABLE = (ErrorCode.COORDINATOR_NOT_AVAILABLE,)

_OPEN: Json = {"security": []}
"""Open to all callers: it reveals nothing about groups."""
_WHOEVER: Json = {"security": parts.security(guarded=False)}
"""Open to all callers, but the answer is about the credentials that they show."""

_EVENT_EXAMPLE = {
    "revision": 42,
    "epoch": 3,
    "at_ms": 1_767_225_600_000,
    "namespace": "default",
    "group_id": "indexers",
    "generation_id": 7,
    "kind": "generation_completed",
    "reason": "member joined",
    "payload": {"members": 2},
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "What a browser sends when it reconnects; wins over `after`.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
}


def special_paths(limits: Limits) -> dict[str, Json]:
    return {
        GROUP_PATH + "/members/{member_id}": {"delete": _remove_member(limits)},
        GROUP_PATH + "/coordinator": {"get": _find_coordinator()},
        GROUP_PATH + "/events": {"get": _watch(limits)},
        "/v1/events": {"get": _read_journal(limits)},
        "/v1/whoami": {"get": _who_am_i()},
        "/v1/namespaces": {"get": _list_namespaces()},
        "/v1/can-i": {"get": _can_i(limits)},
        "/.well-known/jwks.json": {"get": _fence_keys()},
        "/healthz": {"get": _probe("healthz", "The process is up, and a restart would not help it.", "ok")},
        "/readyz": {"get": _probe("readyz", "This replica is ready, whether or not it leads a group.", "ready")},
        "/metrics": {"get": _metrics()},
    }


def _described(operation_id: str, tag: str, summary: str, parameters: list[Json], responses: Json) -> Json:
    return {
        "operationId": operation_id,
        "tags": [tag],
        "summary": summary,
        "parameters": parameters,
        "responses": responses,
    }


def _json(schema: str, example: Json) -> Json:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}, "example": example}
    return {"200": {"description": "Done.", "content": {"application/json": content}}}


def _remove_member(limits: Limits) -> Json:
    example = {
        "members": [{"member_id": "m-1", "group_instance_id": None, "error": "NONE"}],
        "revision": 42,
        "epoch": 3,
    }
    codes = (ErrorCode.INVALID_GROUP_ID, ErrorCode.UNKNOWN_MEMBER_ID, *parts.COORDINATOR_ERRORS)
    return _described(
        "membersRemove",
        Tag.GROUPS,
        "Remove a member, as an administrator. The group rebalances at once.",
        [
            *parts.path_parameters((*_GROUP_PARAMETERS, "member_id")),
            *parts.query_parameters(REMOVE_MEMBER_QUERY, limits),
        ],
        _json("LeaveReply", example) | parts.error_responses(codes, reads_body=False, bounded=True),
    )


def _find_coordinator() -> Json:
    example = {
        "shard_id": 17,
        "replica_id": "rota-0",
        "address": "http://10.0.0.7:8080",
        "epoch": 3,
        "lease_left_ms": 4_200,
        "revision": 42,
        "reported_by": "rota-1",
        "grpc_address": "grpc://10.0.0.7:9090",
        "worker_http_port": 0,
        "worker_grpc_port": 0,
    }
    codes = (ErrorCode.INVALID_GROUP_ID, *parts.COORDINATOR_ERRORS)
    return _described(
        "coordinatorFind",
        Tag.GROUPS,
        "Which replica coordinates this group.",
        parts.path_parameters(_GROUP_PARAMETERS),
        _json("Coordinator", example) | parts.error_responses(codes, reads_body=False),
    )


def _watch(limits: Limits) -> Json:
    stream = (
        "One server-sent event per journal line: `event` is its kind, `id` its revision, `data` an Event. "
        "`server-drain` means: this server goes away, connect again. `interrupted` means: connect again; where the "
        "caller's credentials or rules ended the stream, its `data` is the Problem that a new call has. "
        "A comment is sent every 15 s of silence. "
        f"`{PRUNED_EVENT}` ends a stream where the journal does not have the next lines; its `data` is the Problem "
        "that 410 has."
    )
    codes = (ErrorCode.INVALID_GROUP_ID, ErrorCode.REVISION_OUT_OF_RANGE, *parts.COORDINATOR_ERRORS)
    return _described(
        "groupsWatch",
        Tag.EVENTS,
        "Follow a group's journal, live.",
        [*parts.path_parameters(_GROUP_PARAMETERS), *parts.query_parameters(WATCH_QUERY, limits), _LAST_EVENT_ID],
        {
            "200": {"description": stream, "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **parts.error_responses(codes, reads_body=False),
        },
    )


def _read_journal(limits: Limits) -> Json:
    return _described(
        "journalRead",
        Tag.EVENTS,
        "Read a shard's journal, in order and without gaps.",
        parts.query_parameters(JOURNAL_QUERY, limits),
        _json("JournalReply", {"events": [_EVENT_EXAMPLE], "revision": 42, "epoch": 3})
        | parts.error_responses((ErrorCode.REVISION_OUT_OF_RANGE, *parts.COORDINATOR_ERRORS), reads_body=False),
    )


def _who_am_i() -> Json:
    rule = {
        "name": "scope of ci",
        "effect": "allow",
        "actions": ["describe"],
        "namespaces": ["default"],
        "groups": ["index*"],
        "topics": [],
    }
    example = {
        "subject": "token:ci",
        "method": "token",
        "groups": [],
        "expires_at_ms": 1_767_225_600_000,
        "guarded": True,
        "rules": [rule],
    }
    errors = _kept(parts.error_responses(_REFUSALS, reads_body=False), "401", "500")
    summary = "The caller's identity, its proof, and the rules that apply to it."
    return _described("whoAmI", Tag.ACCESS, summary, [], _json("WhoAmIReply", example) | errors) | _WHOEVER


def _list_namespaces() -> Json:
    errors = _kept(parts.error_responses(parts.COORDINATOR_ERRORS, reads_body=False), "400", "401", "500", "503")
    summary = "The namespaces that the caller may read."
    example = {"namespaces": ["default", "staging"]}
    return _described("namespacesList", Tag.GROUPS, summary, [], _json("NamespacesReply", example) | errors) | _WHOEVER


def _can_i(limits: Limits) -> Json:
    detail = "token:ci may not join group default/indexers: no rule allows it"
    example = {"allowed": False, "rule": "", "detail": detail}
    errors = parts.error_responses((*_REFUSALS, ErrorCode.INVALID_GROUP_ID), reads_body=False)
    responses = _json("CanIReply", example) | _kept(errors, "400", "401", "500")
    summary = "Whether the rules let the caller do this, and which one decides."
    return _described("canI", Tag.ACCESS, summary, parts.query_parameters(CAN_I_QUERY, limits), responses) | _WHOEVER


def _kept(responses: Json, *statuses: str) -> Json:
    return {status: responses[status] for status in statuses}


def _probe(operation_id: str, summary: str, outcome: str) -> Json:
    schema = {"type": "object", "required": ["outcome"], "properties": {"outcome": {"const": outcome}}}
    content = {"application/json": {"schema": schema, "example": {"outcome": outcome}}}
    errors = parts.error_responses(_UNAVAILABLE, reads_body=False)
    kept = _kept(errors, "500", "503")
    responses = {"200": {"description": "Yes.", "content": content}, **kept}
    return _described(operation_id, Tag.SERVER, summary, [], responses) | _OPEN


def _fence_keys() -> Json:
    key = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "alg": "EdDSA"}
    schema = {
        "type": "object",
        "required": ["keys"],
        "properties": {"keys": {"type": "array", "items": {"type": "object"}}},
    }
    content = {"application/jwk-set+json": {"schema": schema, "example": {"keys": [key]}}}
    errors = parts.error_responses((), reads_body=False)
    responses = {"200": {"description": "A JWK set; empty without keys.", "content": content}, "500": errors["500"]}
    summary = "The public keys that fencing tokens are checked with."
    return _described("fenceKeys", Tag.FENCES, summary, [], responses) | _OPEN


def _metrics() -> Json:
    content = {METRICS_MEDIA_TYPE: {"schema": {"type": "string"}}}
    errors = parts.error_responses(_REFUSALS, reads_body=False)
    kept = _kept(errors, "401", "403", "500")
    responses = {"200": {"description": "Prometheus' text format.", "content": content}, **kept}
    return _described("metrics", Tag.SERVER, "Metrics for Prometheus.", [], responses)
