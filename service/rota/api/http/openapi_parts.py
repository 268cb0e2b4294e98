"""The pieces of the OpenAPI document: parameters, schemas of answers, documented errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from rota.api.access.inquiry import CanIReply, NamespacesReply, WhoAmIReply
from rota.api.http.heartbeats import HEARTBEAT_BATCH
from rota.api.http.shapes import Coordinator, Event, HeartbeatBatchReply, JournalReply
from rota.protocol.calls import CALLS
from rota.protocol.errors import ErrorCode, LinesPruned
from rota.protocol.ids import NAME_PATTERN, NAMESPACE_PATTERN
from rota.protocol.limits import MAX_SAFE_INTEGER, Limits
from rota.wire.problems import PROBLEM_MEDIA_TYPE, problem_document
from rota.wire.replies import SHAPES
from rota.wire.routes import REQUESTS
from rota.wire.shapes import Shape
from rota.wire.status import STATUS, Remedy

Json = dict[str, Any]

COORDINATOR_ERRORS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.THROTTLED,
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)
"""Every call to a coordinator may have these."""

SECURITY_SCHEMES: Json = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "rota_… or JWT",
        "description": "What `rota token create` prints, or a JWT of an issuer that the server believes.",
    },
    "certificate": {
        "type": "mutualTLS",
        "description": "A client's certificate that the server's authority signed. Its SPIFFE id or common name calls.",
    },
}

_NUMBER: Json = {"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}
REVISION: Json = {
    "revision": {**_NUMBER, "description": "The shard's last journal entry that this answer reflects."},
    "epoch": {**_NUMBER, "description": "The epoch of the shard's owner."},
}
_PATH_PARAMETERS: dict[str, Json] = {
    "namespace": {
        "description": "A tenant: nothing of two namespaces ever meets.",
        "schema": {"type": "string", "pattern": f"^{NAMESPACE_PATTERN}$"},
        "example": "default",
    },
    "group_id": {
        "description": "The group.",
        "schema": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
        "example": "indexers",
    },
    "topic": {
        "description": "The topic.",
        "schema": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
        "example": "documents",
    },
    "member_id": {
        "description": "A member id that the coordinator gave out.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 512, "pattern": "^[ -~]+$"},
    },
}


def security(*, guarded: bool) -> list[Json]:
    """How a caller authenticates: one of these. Without rules it may also send nothing."""
    proofs: list[Json] = [{name: []} for name in SECURITY_SCHEMES]
    return proofs if guarded else [*proofs, {}]


def path_parameters(names: Iterable[str]) -> list[Json]:
    return [{"name": name, "in": "path", "required": True, **_PATH_PARAMETERS[name]} for name in names]


def query_parameters(shape: Shape, limits: Limits) -> list[Json]:
    """The fields of a shape as query parameters; lists repeat their name. Absent is absent: no null here."""
    schemas = _schemas([shape.read_type(limits)])
    schema = schemas[shape.title]
    parameters = []
    for entry in shape.entries:
        described = {name: value for name, value in schema["properties"][entry.name].items() if name != "description"}
        kinds = [kind for kind in described.pop("anyOf", []) if kind != {"type": "null"}]
        if "$ref" in described:
            described = schemas[described["$ref"].rpartition("/")[2]]
        if described.get("default", ...) is None:
            del described["default"]
        parameters.append(
            {
                "name": entry.name,
                "in": "query",
                "required": entry.name in schema.get("required", ()),
                "description": entry.doc,
                "schema": _selector_or(described | kinds[0] if len(kinds) == 1 else described),
            }
        )
    return parameters


def _selector_or(schema: Json) -> Json:
    """In a query string the partitions of a topic are one text."""
    if "$ref" not in schema.get("items", ()):
        return schema
    return {**schema, "items": {"type": "string", "pattern": f"^{NAME_PATTERN}/[0-9]{{1,9}}(?:,[0-9]{{1,9}})*$"}}


def component_schemas(limits: Limits) -> Json:
    """Every named schema: requests, replies, problems, error codes."""
    requests = [shape for kind, shape in REQUESTS.items() if CALLS[kind].has_body and shape.entries]
    closed = _schemas([shape.read_type(limits) for shape in (*requests, HEARTBEAT_BATCH)])
    for schema in closed.values():
        _admit_null(schema)
    replies = _schemas([*(shape.written_type(limits) for shape in SHAPES.values()), *_SPECIAL])
    return {"Problem": _problem(), **closed, **replies}


_SPECIAL = (Coordinator, Event, HeartbeatBatchReply, JournalReply, NamespacesReply, WhoAmIReply, CanIReply)


def _schemas(types: Iterable[type]) -> Json:
    """By name."""
    _, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    for schema in components.values():
        for described in schema.get("properties", {}).values():
            if described.get("default") == ():
                described["default"] = []
    return components


def _admit_null(schema: Json) -> None:
    """Null is absent, in each field that may be absent."""
    required = schema.get("required", ())
    for name, described in schema.get("properties", {}).items():
        if name not in required and "anyOf" not in described:
            apart = {key: described.pop(key) for key in ("description", "default") if key in described}
            schema["properties"][name] = {"anyOf": [described, {"type": "null"}], **apart}


def _problem() -> Json:
    """RFC 9457, with our code."""
    properties: Json = {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "code": {"$ref": "#/components/schemas/ErrorCode"},
        "retriable": {"type": "boolean", "description": "The same request, unchanged, may succeed later."},
        "remedy": {"type": "string", "enum": [remedy.value for remedy in Remedy], "description": "What to do next."},
        **REVISION,
    }
    member_id = {"type": "string", "description": "With MEMBER_ID_REQUIRED: the id to join with."}
    owner = {"type": "string", "description": "With NOT_COORDINATOR: where the owner of the group is."}
    gone = "With REVISION_OUT_OF_RANGE: the first line that the journal still has; read on after the one before it."
    first_revision = {"type": "integer", "minimum": 1, "description": gone}
    sometimes = {"member_id": member_id, "owner": owner, "first_revision": first_revision, **_journals_end()}
    return {"type": "object", "required": list(properties), "properties": properties | sometimes}


def _journals_end() -> Json:
    ahead = "With REVISION_OUT_OF_RANGE, where the journal ends before the line that the reader has read: "
    end = {"type": "integer", "minimum": 0, "description": f"{ahead}its last line; read on after it."}
    incarnation = {"type": "string", "description": f"{ahead}its random id, a new one after `rota db restore`."}
    return {"last_revision": end, "incarnation": incarnation}


def pending_response(with_member_id: bool) -> Json:
    properties: Json = {"outcome": {"const": "pending"}, **REVISION}
    if with_member_id:
        properties["member_id"] = {"type": "string"}
    example = {"outcome": "pending", "revision": 41, "epoch": 3, **({"member_id": "m-1"} if with_member_id else {})}
    return {
        "description": "Not over yet: call again, with the same member_id.",
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": list(properties), "properties": properties},
                "example": example,
            }
        },
    }


def error_responses(codes: Iterable[ErrorCode], *, reads_body: bool, bounded: bool = False) -> Json:
    """One response per status, naming its codes. Any request may be malformed, any server may fail.

    `bounded`: the query has texts or lists that may be too long.
    """
    by_status: dict[int, list[ErrorCode]] = defaultdict(list)
    for code in dict.fromkeys((*codes, ErrorCode.INVALID_REQUEST)):
        by_status[STATUS[code].http].append(code)
    responses = {str(status): _error_response(status, listed) for status, listed in sorted(by_status.items())}
    responses["500"] = _error_response(500, [ErrorCode.COORDINATOR_NOT_AVAILABLE])
    if reads_body:
        responses["408"] = _error_response(408, [ErrorCode.INVALID_REQUEST])
        responses["415"] = _error_response(415, [ErrorCode.INVALID_REQUEST])
    if reads_body or bounded:
        responses["413"] = _error_response(413, [ErrorCode.PAYLOAD_TOO_LARGE])
    return responses


def _error_response(status: int, codes: list[ErrorCode]) -> Json:
    example = problem_document(codes[0], STATUS[codes[0]].title, status, revision=0, epoch=0)
    if codes[0] is ErrorCode.REVISION_OUT_OF_RANGE:
        pruned = LinesPruned(7, 32)
        example |= {"detail": pruned.detail, "first_revision": pruned.first_revision}
    response: Json = {
        "description": "; ".join(f"`{code}`: {STATUS[code].title}" for code in codes),
        "content": {
            PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example},
        },
    }
    if any(STATUS[code].retry_after_s is not None for code in codes) and status in (429, 503):
        response["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}, "required": True}
        }
    return response
