"""Calls without an answer, over each transport: the cause is logged, and `CoordinatorUnreachable` is raised."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from rota.client import CoordinatorUnreachable
from rota.client.errors import UnreachableKind
from rota.client.transports import Transport
from rota.client.transports.addresses import transport_to
from rota.credentials import Credentials
from tests.access.certificates import Authority
from tests.client.strange_servers import (
    another_grpc_program,
    answering_404,
    dropping_packets,
    listening,
    never_answering,
)
from tests.client.unreachable import BEAT, REQUESTS, failure_of
from tests.contracts.transports import a_door
from tests.support.ports import free_port

SCHEMES = ("http", "grpc", "grpc+stream")


@asynccontextmanager
async def reaching(url: str, credentials: Credentials | None = None) -> AsyncIterator[Transport]:
    transport = transport_to([url], None, credentials)
    try:
        yield transport
    finally:
        await transport.close()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_refused_connection_is_reported_as_such(scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    async with reaching(url) as transport:
        failure = await failure_of(transport)
    assert (failure.kind, failure.was_sent) == (UnreachableKind.CONNECT, False)
    assert failure.detail == f"cannot connect to {url}: connection refused"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_host_name_that_does_not_exist_is_named(scheme: str) -> None:
    async with reaching(f"{scheme}://nowhere.invalid:80") as transport:
        failure = await failure_of(transport)
    assert (failure.kind, failure.was_sent) == (UnreachableKind.DNS, False)
    assert "cannot resolve host name nowhere.invalid" in failure.detail


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_address_that_drops_packets_is_reported_in_time(scheme: str) -> None:
    loop = asyncio.get_running_loop()
    with dropping_packets() as port:
        async with reaching(f"{scheme}://127.0.0.1:{port}") as transport:
            began_at = loop.time()
            failure = await failure_of(transport)
            took_s = loop.time() - began_at
    assert (failure.kind, failure.was_sent) == (UnreachableKind.CONNECT, False)
    assert "no connection within 1500 ms" in failure.detail
    assert took_s < 2


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_silence_is_reported_with_the_address_and_the_time(scheme: str) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(never_answering))
        transport = await stack.enter_async_context(reaching(f"{scheme}://127.0.0.1:{port}"))
        with pytest.raises(CoordinatorUnreachable) as raised:
            await transport.send(BEAT, timeout_ms=200)
    assert raised.value.kind is UnreachableKind.TIMEOUT
    assert raised.value.detail == f"no answer within 200 ms from {scheme}://127.0.0.1:{port}"


@pytest.mark.parametrize("scheme", ["https", "grpcs", "grpcs+stream"])
async def test_a_server_without_tls_is_reported_as_such(scheme: str) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(answering_404))
        transport = await stack.enter_async_context(reaching(f"{scheme}://127.0.0.1:{port}"))
        failure = await failure_of(transport)
    assert (failure.kind, failure.was_sent) == (UnreachableKind.TLS, False)
    assert "TLS handshake failed: the server does not speak TLS" in failure.detail


@pytest.mark.parametrize("scheme", ["https", "grpcs", "grpcs+stream"])
async def test_a_certificate_that_is_not_trusted_is_reported_as_such(scheme: str, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    shown, tls = theirs.issue("server"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(shown.cert, shown.key)
    tls.set_alpn_protocols(["h2"])
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(never_answering, tls))
        credentials = Credentials(ca_file=ours.file)
        transport = await stack.enter_async_context(reaching(f"{scheme}://127.0.0.1:{port}", credentials))
        failure = await failure_of(transport)
    assert (failure.kind, failure.was_sent) == (UnreachableKind.TLS, False)
    assert "TLS: certificate verify failed" in failure.detail
    assert "(is ROTA_CA_FILE right?)" in failure.detail


@pytest.mark.parametrize("scheme", ["grpc", "grpc+stream"])
async def test_a_server_that_speaks_no_grpc_is_reported_as_such(scheme: str) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(answering_404))
        transport = await stack.enter_async_context(reaching(f"{scheme}://127.0.0.1:{port}"))
        failure = await failure_of(transport)
    assert failure.kind is UnreachableKind.FOREIGN_ANSWER
    assert "does not speak gRPC" in failure.detail


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_token_file_that_cannot_be_read_is_named(scheme: str, tmp_path: Path) -> None:
    async with reaching(f"{scheme}://127.0.0.1:{free_port()}", Credentials(token_file=tmp_path / "token")) as transport:
        failure = await failure_of(transport)
    assert (failure.kind, failure.was_sent) == (UnreachableKind.CREDENTIALS, False)
    assert failure.detail == f"the token file {tmp_path / 'token'} cannot be read: No such file or directory"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_token_that_no_header_can_hold_is_not_quoted(scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\x01\ntwo lines")
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(answering_404))
        url = f"{scheme}://127.0.0.1:{port}"
        transport = await stack.enter_async_context(reaching(url, Credentials(token_file=file)))
        failure = await failure_of(transport)
    assert "secret" not in failure.detail


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_call_of_a_closed_client_is_reported_as_such(scheme: str) -> None:
    async with a_door({"grpc+stream": "stream"}.get(scheme, scheme)) as url:
        transport = transport_to([url], None)
        await transport.send(BEAT, timeout_ms=5_000)
        await transport.close()
        for request in REQUESTS:
            failure = await failure_of(transport, request)
            assert (failure.kind, failure.was_sent) == (UnreachableKind.CLOSED, False)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_call_whose_client_is_closed_meanwhile_ends(scheme: str) -> None:
    arrived = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        arrived.set()
        await never_answering(reader, writer)

    async with listening(wait) as port, asyncio.TaskGroup() as tasks:
        transport = transport_to([f"{scheme}://127.0.0.1:{port}"], None)
        call = tasks.create_task(failure_of(transport))
        await arrived.wait()
        await transport.close()
    assert call.result().kind is UnreachableKind.CLOSED


# --- statuses of other gRPC programs ----------------------------------------------------------

_OF_GRPC_ITSELF = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)


@pytest.mark.parametrize("scheme", ["grpc", "grpc+stream"])
@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code not in _OF_GRPC_ITSELF], ids=lambda code: code.name
)
async def test_a_status_of_another_program_counts_as_no_answer(scheme: str, code: grpc.StatusCode) -> None:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(another_grpc_program(code))
        transport = await stack.enter_async_context(reaching(f"{scheme}://{address}"))
        for request in REQUESTS:
            failure = await failure_of(transport, request)
            assert f"{scheme}://{address}" in failure.detail, request
            assert failure.kind in (UnreachableKind.FOREIGN_ANSWER, UnreachableKind.BROKEN, UnreachableKind.TIMEOUT)


@pytest.mark.parametrize("scheme", ["grpc", "grpc+stream"])
async def test_a_message_of_another_program_counts_as_no_answer(scheme: str) -> None:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(another_grpc_program(grpc.StatusCode.OK))
        transport = await stack.enter_async_context(reaching(f"{scheme}://{address}"))
        for request in REQUESTS:
            assert (await failure_of(transport, request)).kind is UnreachableKind.FOREIGN_ANSWER, request
