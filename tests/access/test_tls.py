"""TLS and mutual TLS on both ports: which clients may connect at all, and the effect of changed files."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from rota.server.grpc.server import GrpcServer
from rota.server.http.app import create_app
from rota.server.http_server import HttpServer, listen
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.settings import Address
from rota.server.tls import ServerTls, TlsFiles, UnusableCertificate
from rota.testing.memory import MemoryStore
from tests.access.certificates import Authority, Certificate


class TlsService:
    """Both ports behind one `ServerTls`."""

    def __init__(self, port: int, address: str) -> None:
        self.port = port
        self.address = address

    async def over_http(self, context: ssl.SSLContext) -> int:
        """One call on a new connection; returns the serial number of the certificate that it is shown."""
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            async with client.stream("GET", f"https://127.0.0.1:{self.port}/healthz") as response:
                assert response.status_code == 200
                connection = response.extensions["network_stream"].get_extra_info("ssl_object")
                return int(connection.getpeercert()["serialNumber"], 16)

    async def over_grpc(self, credentials: grpc.ChannelCredentials) -> None:
        """One call on a new connection; raises `AioRpcError`."""
        # Channels with equal options may share a connection, and this one is to be new.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(self.address, credentials, options=options) as channel:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            await check(b"", timeout=5)


@asynccontextmanager
async def a_tls_service(files: TlsFiles) -> AsyncIterator[TlsService]:
    tls = ServerTls(files, look_every_s=0)
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(1)
    bound = listen(Address("127.0.0.1", 0))
    async with LocalCoordinator(store, shard_count=1, clock=clock) as coordinator, asyncio.TaskGroup() as tasks:
        server = GrpcServer(coordinator)
        await server.start("127.0.0.1", 0, tls.grpc_credentials())
        http = HttpServer(create_app(coordinator), [bound], drain_timeout_ms=1_000, tls=tls.context())
        tasks.create_task(http.run_until_stopped())
        try:
            yield TlsService(bound.getsockname()[1], server.address)
        finally:
            http.stop()
            await server.stop(0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server_certificate(authority: Authority) -> Certificate:
    return authority.issue("rota")


async def test_plain_tls_needs_no_certificate_of_the_client(
    authority: Authority, server_certificate: Certificate
) -> None:
    async with a_tls_service(TlsFiles(server_certificate.cert, server_certificate.key)) as service:
        await service.over_http(authority.client_context())
        await service.over_grpc(authority.channel_credentials())


async def test_mutual_tls_admits_signed_certificates_only(
    tmp_path: Path, authority: Authority, server_certificate: Certificate
) -> None:
    files = TlsFiles(server_certificate.cert, server_certificate.key, authority.file)
    (tmp_path / "others").mkdir()
    stranger = Authority(tmp_path / "others", "others").issue("stranger", common_name="stranger")
    friend = authority.issue("friend", common_name="friend")

    async with a_tls_service(files) as service:
        await service.over_http(authority.client_context(friend))
        await service.over_grpc(authority.channel_credentials(friend))
        for refused in (None, stranger):
            with pytest.raises(httpx.TransportError):
                await service.over_http(authority.client_context(refused))
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await service.over_grpc(authority.channel_credentials(refused))


async def test_an_optional_certificate_is_checked_where_presented(
    tmp_path: Path, authority: Authority, server_certificate: Certificate
) -> None:
    files = TlsFiles(server_certificate.cert, server_certificate.key, authority.file, client_optional=True)
    (tmp_path / "others").mkdir()
    stranger = Authority(tmp_path / "others", "others").issue("stranger", common_name="stranger")

    async with a_tls_service(files) as service:
        await service.over_http(authority.client_context())
        await service.over_grpc(authority.channel_credentials())
        with pytest.raises(httpx.TransportError):
            await service.over_http(authority.client_context(stranger))


async def test_new_connections_get_the_current_certificate(
    authority: Authority, server_certificate: Certificate
) -> None:
    async with a_tls_service(TlsFiles(server_certificate.cert, server_certificate.key)) as service:
        before = await service.over_http(authority.client_context())
        authority.issue("rota")
        after = await service.over_http(authority.client_context())
        await service.over_grpc(authority.channel_credentials())

    assert after > before


async def test_whom_the_server_trusts_changes_with_the_file(
    tmp_path: Path, authority: Authority, server_certificate: Certificate
) -> None:
    (tmp_path / "next").mkdir()
    next_authority = Authority(tmp_path / "next", "next")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    old, new = authority.issue("old", common_name="old"), next_authority.issue("new", common_name="new")
    files = TlsFiles(server_certificate.cert, server_certificate.key, trusted)

    async with a_tls_service(files) as service:
        await service.over_http(authority.client_context(old))
        trusted.write_bytes(next_authority.file.read_bytes())
        await service.over_http(authority.client_context(new))
        await service.over_grpc(authority.channel_credentials(new))
        with pytest.raises(httpx.TransportError):
            await service.over_http(authority.client_context(old))
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await service.over_grpc(authority.channel_credentials(old))


BOTH_VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


@BOTH_VERSIONS
async def test_a_session_does_not_outlive_trust_in_its_certificate(
    tmp_path: Path, authority: Authority, server_certificate: Certificate, version: ssl.TLSVersion
) -> None:
    """A client that resumes a session shows no certificate again: the server remembers it."""
    (tmp_path / "next").mkdir()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    client = Resuming(authority.client_context(authority.issue("old", common_name="old")), version)
    files = TlsFiles(server_certificate.cert, server_certificate.key, trusted)

    async with a_tls_service(files) as service:
        assert await client.is_answered(service.port)
        assert await client.is_answered(service.port)
        assert client.resumed
        trusted.write_bytes(Authority(tmp_path / "next", "next").file.read_bytes())

        assert not await client.is_answered(service.port)


@BOTH_VERSIONS
async def test_an_earlier_session_does_not_outlive_its_certificate(
    authority: Authority, server_certificate: Certificate, version: ssl.TLSVersion
) -> None:
    authority.good_for = timedelta(seconds=2)
    short = authority.issue("short", common_name="short")
    client, stranger = (Resuming(authority.client_context(short), version) for _ in range(2))
    files = TlsFiles(server_certificate.cert, server_certificate.key, authority.file)

    async with a_tls_service(files) as service:
        assert await client.is_answered(service.port)
        async with asyncio.timeout(10):
            while await stranger.is_answered(service.port, anew=True):
                continue

        assert not await client.is_answered(service.port)


class Resuming:
    """A client that goes on with the session of its last connection."""

    def __init__(self, context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
        context.maximum_version = version
        self._context = context
        self._session: ssl.SSLSession | None = None
        self.resumed = False
        """Whether the last connection did."""

    async def is_answered(self, port: int, *, anew: bool = False) -> bool:
        """Whether a call on a new connection is."""
        return await asyncio.to_thread(self._call, port, None if anew else self._session)

    def _call(self, port: int, session: ssl.SSLSession | None) -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            try:
                with self._context.wrap_socket(connection, server_hostname="127.0.0.1", session=session) as secured:
                    secured.sendall(b"GET /healthz HTTP/1.1\r\nhost: rota\r\n\r\n")
                    answered = bool(secured.recv(1))
                    self._session, self.resumed = secured.session, bool(secured.session_reused)
                    return answered
            except (ssl.SSLError, ConnectionError):
                return False


async def test_a_half_written_file_changes_nothing(authority: Authority, server_certificate: Certificate) -> None:
    async with a_tls_service(TlsFiles(server_certificate.cert, server_certificate.key)) as service:
        before = await service.over_http(authority.client_context())
        server_certificate.cert.write_text("-----BEGIN CERT")

        assert await service.over_http(authority.client_context()) == before
        await service.over_grpc(authority.channel_credentials())


async def test_what_is_no_tls_hurts_nobody_else(authority: Authority, server_certificate: Certificate) -> None:
    async with a_tls_service(TlsFiles(server_certificate.cert, server_certificate.key)) as service:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 500, b"\x00" * 5_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(garbage)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
        await service.over_http(authority.client_context())


def test_files_that_do_not_match_are_rejected_unquoted(authority: Authority) -> None:
    one, other = authority.issue("one"), authority.issue("other")

    with pytest.raises(UnusableCertificate) as refused:
        ServerTls(TlsFiles(one.cert, other.key))

    assert str(one.cert) in str(refused.value)
    assert "PRIVATE KEY" not in str(refused.value)
