"""The parts of uvicorn that a connection uses are listed, and the installed release has them."""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rota.server.http.connection import UVICORN, HttpConnection
from rota.server.http.member_calls import PendingAnswer
from rota.server.http_server import HttpServer
from tests.http.scripted import ScriptedCoordinator


def is_own(value: ast.expr) -> bool:
    """Whether an attribute of this is one of the connection: of `self`, or of `super()`."""
    return ast.unparse(value) in ("self", "super()")


async def test_every_part_of_uvicorns_protocol_that_is_used_is_listed() -> None:
    server = HttpServer(ScriptedCoordinator(), [], drain_timeout_ms=1_000)  # type: ignore[arg-type]
    protocol = HttpToolsProtocol(server.config, server.server_state, {})
    protocol.on_message_begin()
    source = ast.parse(inspect.getsource(HttpConnection))

    used = {each.attr for each in ast.walk(source) if isinstance(each, ast.Attribute) and is_own(each.value)}

    assert used & set(dir(protocol)) - set(dir(asyncio.Protocol)) == set(UVICORN[HttpToolsProtocol])


def test_a_pending_answer_has_the_parts_of_uvicorns_cycle() -> None:
    given: dict[str, Any] = dict.fromkeys(inspect.signature(RequestResponseCycle).parameters)
    cycle, parts = RequestResponseCycle(**given), set(UVICORN[RequestResponseCycle])

    assert parts <= set(dir(cycle))
    assert parts - {"transport"} <= set(dir(PendingAnswer))
    assert set(UVICORN[FlowControl]) <= set(dir(FlowControl(asyncio.Transport())))
