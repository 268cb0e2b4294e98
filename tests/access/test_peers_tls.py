"""Mutual TLS between replicas: a process without a certificate of their authority is rejected as a peer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import Replica
from rota.protocol.messages import ListTopics
from rota.server.peer.client import PEER_NAME, GrpcPeers
from rota.server.peer.server import PeerServer
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.settings import Settings
from rota.server.tls import ServerTls, TlsFiles
from rota.testing.memory import MemoryStore
from tests.access.certificates import Authority, Certificate
from tests.runtime.conftest import until
from tests.support.peers import answered, asked


def peer_tls(authority: Authority, certificate: Certificate) -> ServerTls:
    return ServerTls(TlsFiles(certificate.cert, certificate.key, authority.file), look_every_s=0)


@asynccontextmanager
async def a_peer(tls: ServerTls) -> AsyncIterator[Replica]:
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(1)
    async with LocalCoordinator(store, shard_count=1, clock=clock) as local:
        await local.wait_until_ready()
        server = PeerServer(local, "127.0.0.1", credentials=tls.grpc_credentials())
        await server.start()
        yield Replica("r", "http://r", f"127.0.0.1:{server.port}")
        await server.stop()


@asynccontextmanager
async def peers_with(tls: ServerTls | None) -> AsyncIterator[GrpcPeers]:
    peers = GrpcPeers(credentials=tls.channel_credentials if tls is not None else None)
    yield peers
    await peers.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_replicas_that_one_authority_signed_talk(authority: Authority) -> None:
    ours, theirs = authority.issue(PEER_NAME), authority.issue("another")

    async with a_peer(peer_tls(authority, ours)) as peer, peers_with(peer_tls(authority, theirs)) as peers:
        answer = await answered(peers, peer, ListTopics("default"))

    assert answer.reply.error == "NONE"


async def test_plain_text_and_strangers_are_refused(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "others").mkdir()
    others = Authority(tmp_path / "others", "others")
    stranger = others.issue("stranger")
    # It trusts our authority, as any process may that has its public half.
    posing = ServerTls(TlsFiles(stranger.cert, stranger.key, authority.file))

    async with a_peer(peer_tls(authority, authority.issue(PEER_NAME))) as peer:
        for tls in (None, posing):
            async with peers_with(tls) as peers:
                assert isinstance(await asked(peers, peer, ListTopics("default")), NoAnswer)


async def test_a_replica_does_not_talk_to_one_of_another_name(authority: Authority) -> None:
    other_service = authority.issue("another-service")

    async with (
        a_peer(peer_tls(authority, other_service)) as peer,
        peers_with(peer_tls(authority, other_service)) as peers,
    ):
        assert isinstance(await asked(peers, peer, ListTopics("default")), NoAnswer)


async def test_channels_of_former_certificates_are_closed(authority: Authority) -> None:
    def connections() -> int:
        port = int(peer.peer_address.rpartition(":")[2])
        return sum(bool(each.raddr) and each.raddr.port == port for each in psutil.Process().net_connections("tcp"))

    mine = peer_tls(authority, authority.issue("mine"))
    async with a_peer(peer_tls(authority, authority.issue(PEER_NAME))) as peer, peers_with(mine) as peers:
        for _ in range(4):
            authority.issue("mine")
            await answered(peers, peer, ListTopics("default"))
        await until(lambda: connections() == 1)

        assert (await answered(peers, peer, ListTopics("default"))).reply.error == "NONE"


def test_certificates_stand_in_for_the_secret_beyond_loopback(authority: Authority) -> None:
    ours = authority.issue(PEER_NAME)
    files = {"peer_tls_cert_file": ours.cert, "peer_tls_key_file": ours.key, "peer_tls_ca_file": authority.file}

    assert Settings(peer="0.0.0.0:0", **files).peer_tls_ca_file == authority.file  # type: ignore[arg-type]
    for name in files:
        with pytest.raises(ValueError, match="go together"):
            Settings(**{key: value for key, value in files.items() if key != name})  # type: ignore[arg-type]
