"""The calls over HTTP and over gRPC, from the OpenAPI document and the comments in proto/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from rota.protocol.messages import Request

PROTO = Path(__file__).parents[1] / "proto" / "rota" / "v1"
_SERVICE = re.compile(r"^service (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_RPC = re.compile(r"((?:  //[^\n]*\n)*)  rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)")

Row = tuple[str, ...]


def dump_openapi() -> str:
    """The OpenAPI document of a server with the default limits and with rules."""
    from rota.server.http.app import build_fastapi

    return json.dumps(build_fastapi(guarded=True).openapi(), indent=2, ensure_ascii=False) + "\n"


def http_rows() -> dict[str, list[Row]]:
    """Method and path, summary, and the action that rules must allow, by tag."""
    from rota.protocol.calls import CALLS

    rights = {(call.method, call.path): f"`{call.need.action}`" for call in CALLS.values()}
    document = json.loads(dump_openapi())
    rows: dict[str, list[Row]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            asked = rights.get((method.upper(), path), "credentials") if operation["security"] else "nothing"
            row = (f"`{method.upper()} {path}`", operation["summary"], asked)
            rows.setdefault(operation["tags"][0], []).append(row)
    return rows


def body_of(request: Request) -> str:
    """A request's body."""
    from rota.protocol.wire.routes import encode_request

    return json.dumps(encode_request(request).body, indent=2)


def grpc_rows() -> Iterator[tuple[str, list[Row]]]:
    """The rpcs of each service, with what is said above them."""
    for file in sorted(PROTO.glob("*.proto")):
        for service, body in _SERVICE.findall(file.read_text()):
            yield service, [_rpc(*found) for found in _RPC.findall(body)]


def _rpc(comment: str, name: str, streamed: str, request: str, streams: str, response: str) -> Row:
    text = " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
    return (f"`{name}`", text, f"{streamed}`{request}`", f"{streams}`{response}`")
