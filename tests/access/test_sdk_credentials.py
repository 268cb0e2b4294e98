"""The SDK proves its identity, on every transport, and raises its own errors when it is rejected."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.client import (
    AccessDenied,
    Assigned,
    Client,
    Credentials,
    Member,
    Rejected,
    connect,
)
from rota.client.transports.rpc import Channels
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import NAMESPACE, Service
from tests.grpc.clients import SessionClient

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKER = "spiffe://corp/ns/team-a/sa/worker"
TRANSPORTS = ["http", "grpc", "grpc+stream"]


def url_of(service: Service, scheme: str, *, tls: bool = False) -> str:
    if tls:
        port = service.tls_port if scheme == "http" else service.tls_server.address.rpartition(":")[2]
        return f"{scheme.replace('grpc', 'grpcs').replace('http', 'https')}://127.0.0.1:{port}"
    return str(service.http.base_url) if scheme == "http" else f"{scheme}://{service.server.address}"


def fast(client: Client, group_id: str) -> Member[bytes]:
    return client.member(
        group_id,
        protocol_type="worker",
        protocols={"p": b""},
        assign=lambda generation: {member.member_id: b"all" for member in generation.members},
        session_timeout=3.0,
    )


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_a_member_joins_with_its_token(service: Service, scheme: str) -> None:
    token = service.secrets.a_token(f"member over {scheme}")

    async with connect(url_of(service, scheme), NAMESPACE, credentials=Credentials(token)) as client:
        async with fast(client, named("g", scheme)) as member:
            await member.wait_assigned()
            assert member.generation_id == 1


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_without_a_token_a_member_ends_with_a_typed_error(service: Service, scheme: str) -> None:
    async with connect(url_of(service, scheme), NAMESPACE, retry_refusals=False) as client:
        with pytest.raises(AccessDenied, match="UNAUTHENTICATED"):
            async with fast(client, "nobodys") as member:
                await member.wait_assigned()


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_a_member_with_a_revoked_token_is_notified_and_ends(service: Service, scheme: str) -> None:
    name = f"leaver over {scheme}"
    shown = Credentials(service.secrets.a_token(name))

    async with connect(url_of(service, scheme), NAMESPACE, credentials=shown, retry_refusals=False) as client:
        with pytest.raises(AccessDenied, match="was revoked"):
            await hold(fast(client, named("left", scheme)), lambda: service.secrets.revoke(name))


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_a_member_heals_once_its_token_file_is_right_again(service: Service, scheme: str, tmp_path: Path) -> None:
    first, second = (service.secrets.a_token(f"{name} heals over {scheme}") for name in ("old", "new"))
    file = tmp_path / "token"
    file.write_text(first)

    async with connect(url_of(service, scheme), NAMESPACE, credentials=Credentials(token_file=file)) as client:
        async with asyncio.timeout(60), fast(client, named("heals", scheme)) as member:
            await member.wait_assigned()
            service.secrets.revoke(f"old heals over {scheme}")
            troubles: list[str] = []
            async for event in member.events():
                if isinstance(event, Rejected):
                    troubles.append(member.trouble)
                    replace(file, second)
                if isinstance(event, Assigned) and troubles:
                    break

    assert "was revoked" in troubles[0]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_a_token_file_is_read_again_when_it_has_changed(service: Service, scheme: str, tmp_path: Path) -> None:
    first, second = (service.secrets.a_token(f"{name} over {scheme}") for name in ("old", "new"))
    file = tmp_path / "token"
    file.write_text(first + "\n")

    async with connect(url_of(service, scheme), NAMESPACE, credentials=Credentials(token_file=file)) as client:
        await client.list_groups()
        service.secrets.revoke(f"old over {scheme}")
        with pytest.raises(AccessDenied, match="UNAUTHENTICATED"):
            await list_until_refused(client)
        replace(file, second)
        await client.list_groups()


@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_a_client_presents_its_certificate_and_trusts_its_own_ca(service: Service, scheme: str) -> None:
    authority = service.secrets.authority
    shown = authority.issue("client", uri=WORKER)
    credentials = Credentials(ca_file=authority.file, cert_file=shown.cert, key_file=shown.key)

    async with connect(url_of(service, scheme, tls=True), NAMESPACE, credentials=credentials) as client:
        async with fast(client, named("tls", scheme)) as member:
            await member.wait_assigned()


async def test_a_renewed_certificate_replaces_a_channel_in_use(service: Service, tmp_path: Path) -> None:
    """A process that lives for a year, with certificates that live for an hour, keeps one channel for an address."""
    url = url_of(service, "grpc", tls=True)
    channels = Channels(None, a_worker_with_files(service, tmp_path))
    session = SessionClient(channels.to(url))
    await session.ask(options=pb.SessionOptions())
    former = weakref.ref(channels.to(url))

    renew(service, tmp_path, WORKER)
    channels.to(url)
    gc.collect()

    assert former() is None
    await session.ask(options=pb.SessionOptions())
    await session.close()
    await channels.close()


async def test_certificates_that_cannot_be_used_are_an_error_at_once(tmp_path: Path) -> None:
    nowhere = Credentials(ca_file=tmp_path / "ca.pem")

    with pytest.raises(ValueError, match="the certificates cannot be used: No such file"):
        nowhere.ssl_context()
    with pytest.raises(ValueError, match="the certificates cannot be used: No such file"):
        nowhere.channel_credentials()


async def test_what_is_not_given_comes_from_the_environment(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROTA_TOKEN", service.secrets.a_token("from the environment"))

    async with connect(url_of(service, "http"), NAMESPACE) as client:
        await client.list_groups()

    (tmp_path / "token").write_text("of another server")
    assert Credentials(token_file=tmp_path / "token").or_environment().token is None


async def test_credentials_do_not_show_their_secrets(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("planted-secret")
    credentials = Credentials(token_file=tmp_path / "token")

    assert credentials.authorization() == "Bearer planted-secret"
    assert "planted-secret" not in repr(credentials)
    assert "planted-secret" not in repr(Credentials("planted-secret"))


def a_worker_with_files(service: Service, folder: Path) -> Credentials:
    renew(service, folder, WORKER)
    return Credentials(
        ca_file=service.secrets.authority.file, cert_file=folder / "tls.crt", key_file=folder / "tls.key"
    )


def renew(service: Service, folder: Path, uri: str) -> None:
    issued = service.secrets.authority.issue("renewed", uri=uri)
    os.replace(issued.cert, folder / "tls.crt")
    os.replace(issued.key, folder / "tls.key")


async def list_until_refused(client: Client) -> None:
    """A decision is kept for a moment."""
    async with asyncio.timeout(10):
        while True:
            await client.list_groups()


def named(purpose: str, scheme: str) -> str:
    return f"{purpose}-{scheme.replace('+', '-')}"


async def hold(member: Member[bytes], once_held: Callable[[], None]) -> None:
    """Be a member until something ends it."""
    async with asyncio.timeout(10), member:
        await member.wait_assigned()
        once_held()
        async for _ in member.events():
            pass


def replace(file: Path, token: str) -> None:
    """As Kubernetes does it: all at once."""
    beside = file.with_suffix(".next")
    beside.write_text(token)
    os.replace(beside, file)
