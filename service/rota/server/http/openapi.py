"""The parts of the OpenAPI document that FastAPI cannot know: schemas of structs, and errors of the protocol.

FastAPI writes the document itself (`fastapi.openapi.utils.get_openapi`). Path operations bring their part of it along
as `responses` and `openapi_extra`, made by the functions here; `complete` adds what all of them refer to.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import fields

from rota.protocol.calls import CALLS, Call
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import NAME_PATTERN
from rota.protocol.messages import Heartbeat, JoinReply, SyncReply
from rota.protocol.values import END, Epoch, Revision
from rota.protocol.wire.problems import PROBLEM_MEDIA_TYPE
from rota.protocol.wire.replies import SHAPES, Pending
from rota.protocol.wire.routes import REQUESTS
from rota.protocol.wire.shapes import Shape
from rota.protocol.wire.status import STATUS, Remedy
from rota.server.http.heartbeats import HEARTBEAT_BATCH, HeartbeatBatchReply

Json = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]

_COORDINATOR_ERRORS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.THROTTLED,
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_REQUEST,
)
"""Every call to a coordinator may have these."""
_SECURITY_SCHEMES: Json = {
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
_PROOFS: list[Json] = [{name: []} for name in _SECURITY_SCHEMES]
OPEN: Json = {"security": []}
"""Open to all callers: it reveals nothing about groups."""
OPTIONAL: Json = {"security": [*_PROOFS, {}]}
"""Open to all callers, but the answer is about the credentials that they show."""
_AHEAD = "With REVISION_OUT_OF_RANGE, if the journal ends before the line that the reader has read:"


class Problem(Struct):
    """An error (RFC 9457)."""

    type: Annotated[str, Meta(extra_json_schema={"format": "uri"})]
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    code: ErrorCode
    retriable: bool
    """The same request, unchanged, may succeed later."""
    remedy: Remedy
    """What to do next."""
    revision: Revision
    epoch: Epoch
    member_id: str | UnsetType = UNSET
    """With MEMBER_ID_REQUIRED: the id to join with."""
    owner: str | UnsetType = UNSET
    """With NOT_COORDINATOR: where the owner of the group is."""
    first_revision: int | UnsetType = UNSET
    """With REVISION_OUT_OF_RANGE: the first line that the journal still has; read on after the one before it."""
    last_revision: int | UnsetType = UNSET
    """With REVISION_OUT_OF_RANGE, if the journal ends before the line that the reader has read: its last line; read on
    after it.
    """
    incarnation: str | UnsetType = UNSET
    """With REVISION_OUT_OF_RANGE, if the journal ends before the line that the reader has read: its random id, a new
    one after `rota db restore`.
    """


# --- of one path operation ----------------------------------------------------------------------------


def content(*names: str, media_type: str = "application/json") -> Json:
    """The content of a body that has one of these schemas."""
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return {"content": {media_type: {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}}


def done(*names: str) -> Responses:
    """The response of an operation that has succeeded."""
    return {200: {"description": "Done.", **content(*names)}}


def done_as(media_type: str, description: str, schema: Json | None = None) -> Responses:
    """The response of an operation that answers with something other than a struct's JSON."""
    return {200: {"description": description, "content": {media_type: {"schema": schema or {"type": "string"}}}}}


def answers(call: Call) -> Responses:
    """The responses of a call that has succeeded, or that waits for other members."""
    if call.request is Heartbeat:
        return done(call.reply.__name__, HeartbeatBatchReply.__name__)
    if call.reply not in (JoinReply, SyncReply):
        return done(call.reply.__name__)
    pending = {"description": "Not over yet: call again, with the same member_id.", **content(Pending.__name__)}
    return done(call.reply.__name__) | {202: pending}


def problems(*codes: ErrorCode, reads_body: bool = False, bounded: bool = False) -> Responses:
    """One response for each status, with the codes that it may have beside those of every operation.

    `bounded`: the query has texts or lists that may be too long.
    """
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in dict.fromkeys((*codes, *_COORDINATOR_ERRORS)):
        by_status[STATUS[code].http].append(f"`{code}`: {STATUS[code].title}")
    by_status[500].append("The outcome is unknown; see the server's log.")
    if reads_body:
        by_status[408].append("The body did not arrive in time.")
        by_status[415].append("The body is not plain JSON.")
    if reads_body or bounded:
        by_status[413] = by_status[413] or [f"`{ErrorCode.PAYLOAD_TOO_LARGE}`"]
    responses: Responses = {
        status: {"description": "; ".join(said), **content("Problem", media_type=PROBLEM_MEDIA_TYPE)}
        for status, said in sorted(by_status.items())
    }
    for status in (429, 503):
        schema = {"type": "integer", "minimum": 1}
        responses[status]["headers"] = {"Retry-After": {"description": "Seconds.", "schema": schema, "required": True}}
    return responses


def only(responses: Responses, *statuses: int) -> Responses:
    return {status: responses[status] for status in statuses}


def body(shape: Shape) -> Json:
    """The body of a request. If no field is required, none need be sent."""
    messages = (shape.message, HEARTBEAT_BATCH.message) if shape.message is Heartbeat else (shape.message,)
    required = any(entry.default is NODEFAULT for entry in shape.entries)
    return {"requestBody": {"required": required, **content(*[each.__name__ for each in messages])}}


def query(shape: Shape) -> Json:
    """The fields of a shape as query parameters; lists repeat their name. Absent is absent: no null here."""
    schemas = _schemas([shape], [])
    schema = schemas[shape.message.__name__]
    parameters = []
    for name, written in schema["properties"].items():
        described = dict(written)
        for kind in described.pop("anyOf", ()):
            described.update(kind if kind != {"type": "null"} else {})
        if described.get("default", ...) is None:
            del described["default"]
        text = described.pop("description", "")
        if "$ref" in described:
            described = schemas[described["$ref"].rpartition("/")[2]]
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in schema.get("required", ()),
                "description": text,
                "schema": _selector_or(described),
            }
        )
    return {"parameters": parameters}


def _selector_or(schema: Json) -> Json:
    """In a query string the partitions of a topic are one text."""
    if "$ref" not in schema.get("items", ()):
        return schema
    return {**schema, "items": {"type": "string", "pattern": f"^{NAME_PATTERN}/[0-9]{{1,9}}(?:,[0-9]{{1,9}})*$"}}


# --- of all path operations ---------------------------------------------------------------------------


def complete(document: Json, structs: Iterable[type[Struct]], *, guarded: bool) -> Json:
    """Add what path operations refer to, and how callers authenticate. `guarded`: they must."""
    proofs = _PROOFS if guarded else OPTIONAL["security"]
    for described in (described for methods in document["paths"].values() for described in methods.values()):
        described.setdefault("security", proofs)
        # FastAPI's own response to a request that pydantic rejects: the protocol's checks reject it with 400.
        described["responses"].pop("422", None)
    requests = [shape for kind, shape in REQUESTS.items() if CALLS[kind].has_body and shape.entries]
    schemas = _schemas([*requests, HEARTBEAT_BATCH, *SHAPES.values()], [Problem, Pending, *structs])
    document["components"] = {"securitySchemes": _SECURITY_SCHEMES, "schemas": schemas}
    return document


def _schemas(shapes: Iterable[Shape], structs: Iterable[type[Struct]]) -> Json:
    """By name."""
    types = [shape.struct for shape in shapes] + [*structs]
    _, found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    # In all dialects but Python's, `$` is the end of the text alone.
    schemas: Json = json.loads(json.dumps(found).replace(json.dumps(END)[1:-1], "$"))
    for kind in _structs_beside([*[shape.message for shape in shapes], *structs]):
        for field in fields(kind):
            if text := _texts_of(kind.__module__).get((kind.__name__, field.name)):
                schema = schemas.get(kind.__name__, {}).get("properties", {}).get(field.encode_name)
                if schema is not None:
                    schema["description"] = text
    return schemas


def _structs_beside(kinds: Iterable[type[Struct]]) -> Iterable[type[Struct]]:
    """The structs of the modules that have these: parts of messages are defined beside them."""
    known = [each for module in {kind.__module__ for kind in kinds} for each in vars(sys.modules[module]).values()]
    return {each for each in known if isinstance(each, type) and issubclass(each, Struct)}


@cache
def _texts_of(module: str) -> dict[tuple[str, str], str]:
    """The first paragraph of the text below each field of the module's classes."""
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:  # An installation without sources has no texts.
        return {}
    found = {}
    for kind in [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]:
        for statement, text in pairwise(kind.body):
            match statement, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[kind.name, name] = " ".join(said.partition("\n\n")[0].split())
    return found
