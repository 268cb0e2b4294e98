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
from rota.protocol.calls import CALLS, Call, Tag
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, JoinReply, SyncReply
from rota.protocol.values import REQUIRED
from rota.wire.replies import SHAPES
from rota.wire.routes import REQUESTS
from rota.wire.shapes import Shape

Json = dict[str, Any]

TAGS = {
    Tag.MEMBERSHIP: "Join a group, agree on a generation, fetch your share, stay alive, leave.",
    Tag.OFFSETS: "Progress per topic and partition, fenced by the generation.",
    Tag.FENCES: "The leader, and whether a fencing token is still current.",
    Tag.GROUPS: "Look at groups and administer them.",
    Tag.TOPICS: "Named things with a number of partitions.",
    Tag.EVENTS: "The journal: each change of a group, its reason, and its cause.",
    Tag.ACCESS: "The caller's identity and permissions.",
    Tag.SERVER: "Is the process up, can it take part, how is it doing.",
}

_DESCRIPTION = """\
Kafka's classic group protocol over HTTP: join a group, agree on a generation, get your share, keep heartbeating.

Each grant has a `fencing_token`: what you write to refuses lower ones.

Errors are RFC 9457 problem documents whose `code` is a name of the protocol.
Bytes are standard base64, times are integers that end in `_ms`. Calls with `wait_ms` may park for that long."""


def build_openapi(limits: Limits, *, guarded: bool = True) -> Json:
    """The whole document for a server with these limits. `guarded`: callers must authenticate."""
    paths: dict[str, Json] = defaultdict(dict)
    for call in CALLS.values():
        if call.path:
            paths[call.path][call.method.lower()] = _operation(call, limits)
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


def _operation(call: Call, limits: Limits) -> Json:
    shape = REQUESTS[call.request]
    described: Json = {
        "operationId": call.operation,
        "tags": [call.tag],
        "summary": call.summary,
        "parameters": parts.path_parameters(call.path_names),
    }
    if call.has_body:
        described["requestBody"] = _request_body(call, shape)
    else:
        described["parameters"] += parts.query_parameters(shape, limits)
    codes = (*call.errors, *parts.COORDINATOR_ERRORS)
    described["responses"] = _successes(call) | parts.error_responses(
        codes, reads_body=call.has_body, bounded=bool(shape.entries)
    )
    return described


def _request_body(call: Call, shape: Shape) -> Json:
    schema: Json = _ref(shape.title)
    if call.request is Heartbeat:
        schema = {"anyOf": [schema, _ref(HEARTBEAT_BATCH.title)]}
    # Where nothing has to be said, nothing need be sent.
    required = any(entry.default is REQUIRED for entry in shape.entries)
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _successes(call: Call) -> Json:
    schema: Json = _ref(SHAPES[call.reply].title)
    if call.request is Heartbeat:
        schema = {"anyOf": [schema, _ref("HeartbeatBatchReply")]}
    described: Json = {"200": {"description": "Done.", "content": {"application/json": {"schema": schema}}}}
    if call.reply in (JoinReply, SyncReply):
        described["202"] = parts.pending_response(call.reply is JoinReply)
    return described


def _ref(title: str) -> Json:
    return {"$ref": f"#/components/schemas/{title}"}


def dump_openapi() -> str:
    """The document of a server with the default limits, as `docs/reference/openapi.json` holds it."""
    return json.dumps(build_openapi(Limits()), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(dump_openapi())
