"""The OpenAPI document, made of the operations, the routes and the shapes that the server itself uses."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from importlib.metadata import version
from typing import Any

from rota.api.http import openapi_parts as parts
from rota.api.http.heartbeats import HEARTBEAT_BATCH
from rota.api.http.openapi_special import special_paths
from rota.api.http.operations import OPERATIONS, TAGS, Operation
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, JoinReply, SyncReply
from rota.protocol.values import REQUIRED
from rota.wire.replies import SHAPES, encode_reply
from rota.wire.routes import ROUTES, Carrier, Route, encode_request

Json = dict[str, Any]

_DESCRIPTION = """\
Kafka's classic group protocol over HTTP: join a group, agree on a generation, get your share, keep heartbeating.

Each grant has a `fencing_token`: what you write to refuses lower ones.

Errors are RFC 9457 problem documents whose `code` is a name of the protocol.
Bytes are standard base64, times are integers that end in `_ms`. Calls with `wait_ms` may park for that long."""


def build_openapi(limits: Limits, *, guarded: bool = True) -> Json:
    """The whole document for a server with these limits. `guarded`: callers must authenticate."""
    paths: dict[str, Json] = defaultdict(dict)
    for operation in OPERATIONS:
        route = ROUTES[type(operation.request)]
        paths[route.path][route.method.lower()] = _operation(operation, route, limits)
    for path, methods in special_paths(limits).items():
        paths[path] |= methods
    for described in (described for methods in paths.values() for described in methods.values()):
        # A new route that is open to all callers must be listed there.
        described.setdefault("security", parts.security(guarded=guarded))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rota",
            "version": version("rota"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": ".", "description": "This server, also below a path."}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": dict(paths),
        "components": {
            "securitySchemes": parts.SECURITY_SCHEMES,
            "schemas": parts.component_schemas(limits),
        },
    }


def _operation(operation: Operation, route: Route, limits: Limits) -> Json:
    reads_body = route.carrier is Carrier.BODY
    described: Json = {
        "operationId": operation.operation_id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": parts.path_parameters(route.path_parameters),
    }
    if reads_body:
        described["requestBody"] = _request_body(operation, route)
    else:
        described["parameters"] += parts.query_parameters(route.shape, limits)
    codes = (*operation.errors, *parts.COORDINATOR_ERRORS)
    described["responses"] = _successes(operation) | parts.error_responses(
        codes, reads_body=reads_body, bounded=bool(route.shape.entries)
    )
    return described


def _request_body(operation: Operation, route: Route) -> Json:
    schema: Json = _ref(route.shape.title)
    examples: Json = {"one": {"value": encode_request(operation.request).body}}
    if isinstance(operation.request, Heartbeat):
        schema = {"anyOf": [schema, _ref(HEARTBEAT_BATCH.title)]}
        one = {"member_id": operation.request.member_id, "generation_id": operation.request.generation_id}
        examples["several"] = {"value": {"members": [one]}}
    # Where nothing has to be said, nothing need be sent.
    required = any(entry.default is REQUIRED for entry in route.shape.entries)
    return {"required": required, "content": {"application/json": {"schema": schema, "examples": examples}}}


def _successes(operation: Operation) -> Json:
    reply = operation.reply
    schema: Json = _ref(SHAPES[type(reply)].title)
    example = {**encode_reply(reply), "revision": 42, "epoch": 3}
    if isinstance(operation.request, Heartbeat):
        schema = {"anyOf": [schema, _ref("HeartbeatBatchReply")]}
    described: Json = {
        "200": {"description": "Done.", "content": {"application/json": {"schema": schema, "example": example}}}
    }
    if isinstance(reply, (JoinReply, SyncReply)):
        described["202"] = parts.pending_response(isinstance(reply, JoinReply))
    return described


def _ref(title: str) -> Json:
    return {"$ref": f"#/components/schemas/{title}"}


def dump_openapi() -> str:
    """The document of a server with the default limits, as `docs/reference/openapi.json` holds it."""
    return json.dumps(build_openapi(Limits()), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(dump_openapi())
