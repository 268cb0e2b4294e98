"""A request that the server fails to read: a line in the log, and an answer that does not call the request bad."""

from __future__ import annotations

from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rota.server.http.connection import HttpConnection
from tests.http.both_ways import Both, Listener, a_request, as_new

pytestmark = pytest.mark.asyncio(loop_scope="module")
KINDS = ("fast", "plain")
CALLBACKS = ("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete")
POST = a_request(path="/v1/namespaces/default/groups/g/sync")


def raises(error: Exception) -> Any:
    def raising(*_: object) -> None:
        raise error

    return raising


def class_of(callback: str) -> type:
    return HttpConnection if callback == "on_header" else HttpToolsProtocol


def listener_of(both: Both, kind: str) -> Listener:
    return both.fast if kind == "fast" else both.plain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("callback", CALLBACKS)
async def test_a_request_without_memory_is_answered_503(
    callback: str, kind: str, servers: Both, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the edge of the library that reads it. A client tries a 503 again, and never a 400."""
    monkeypatch.setattr(
        HttpConnection if callback == "on_header" else HttpToolsProtocol, callback, raises(MemoryError())
    )
    # Not a call that is answered without the library's protocol.
    request = POST if callback in ("on_url", "on_header") else POST.replace(b"/sync", b"/unknown")

    answer = await listener_of(servers, kind).exchange(request)

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in answer
    assert b'"code":"COORDINATOR_NOT_AVAILABLE"' in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "short of memory" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("callback", CALLBACKS)
async def test_a_bug_while_parsing_is_logged_and_answered_500(
    callback: str, kind: str, servers: Both, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        HttpConnection if callback == "on_header" else HttpToolsProtocol, callback, raises(KeyError("a bug"))
    )
    request = POST if callback in ("on_url", "on_header") else POST.replace(b"/sync", b"/unknown")

    answer = await listener_of(servers, kind).exchange(request)

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "KeyError: 'a bug'" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_runs_out_of_memory_is_answered_503(kind: str, servers: Both) -> None:
    both = await as_new(servers)
    both.scripted.reply = MemoryError()

    answer = await listener_of(both, kind).exchange(POST)

    assert answer.startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("path", ["/healthz", "/nowhere"])
async def test_the_application_without_memory_answers_503(
    path: str, servers: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also outside of the handlers, where the libraries would answer 500."""
    monkeypatch.setattr("starlette.routing.Router.__call__", raises(MemoryError()))

    answer = await servers.plain.exchange(a_request(b"", "Host: localhost", path=path, method="GET"))

    assert answer.startswith(b"HTTP/1.1 503 ")
