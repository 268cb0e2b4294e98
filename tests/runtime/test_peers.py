"""The callers that may ask a replica as peers, and the connections to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from pydantic import ValidationError

from rota.core.access.budgets import Budgets, Share
from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import Answer, JournalEvent, Replica
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    ListTopics,
)
from rota.server.peer import server as server_of_peers
from rota.server.peer import unproven
from rota.server.peer.client import GrpcPeers
from rota.server.peer.server import MOST_STRANGERS, PeerServer
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.settings import Settings
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import EVENTUALLY_S, until
from tests.runtime.peers import (
    BEAT,
    EVENT,
    NEXT_SECRET,
    SECRET,
    a_peer,
    an_owner,
    peers_that_show,
    until_answered,
)
from tests.support.peers import answered, asked
from tests.support.raw_http2 import PREFACE

# --- the secret -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [(), ("something else entirely",), (SECRET[:-1],), (NEXT_SECRET, SECRET)])
async def test_a_peer_that_does_not_show_the_secret_is_refused(tables: MemoryTables, shown: tuple[str, ...]) -> None:
    async with a_peer(tables, SECRET) as peer, peers_that_show(*shown) as peers:
        for request in (ListTopics("default"), BEAT):
            outcome = await asked(peers, peer, request)
            assert isinstance(outcome, NoAnswer)
            assert "show a secret" in outcome.why
        watched = [event async for event in peers.watch(peer, "default", "g", 0)]

    assert watched == []


@pytest.mark.parametrize("shown", [SECRET, NEXT_SECRET])
async def test_any_of_the_secrets_is_accepted(tables: MemoryTables, shown: str) -> None:
    async with a_peer(tables, SECRET, NEXT_SECRET) as peer, peers_that_show(shown) as peers:
        answer = await answered(peers, peer, ListTopics("default"))

    assert answer.reply.error == "NONE"


async def test_a_secret_is_changed_while_peers_are_connected(tables: MemoryTables) -> None:
    accepted, current = [SECRET, NEXT_SECRET], [SECRET]
    peers = GrpcPeers(lambda: current)
    async with an_owner(tables) as (local, _), peers_that_show(SECRET) as former:
        server = PeerServer(local, "127.0.0.1", secrets=lambda: accepted)
        await server.start()
        peer = Replica("r", "http://r", f"127.0.0.1:{server.port}")
        before = [await asked(each, peer, BEAT) for each in (peers, former)]
        current[0] = NEXT_SECRET
        between = await asked(peers, peer, BEAT)
        accepted.remove(SECRET)
        after, refused = await asked(peers, peer, BEAT), await asked(former, peer, BEAT)
        await peers.close()
        await server.stop()

    assert all(isinstance(outcome, Answer) for outcome in (*before, between, after))
    assert isinstance(refused, NoAnswer)
    assert "show a secret" in refused.why


async def test_an_open_port_takes_a_few_streams_without_the_secret(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_of_peers, "MOST_STRANGERS", 1)
    async with (
        a_peer(tables, SECRET, is_open=True) as peer,
        peers_that_show() as one,
        peers_that_show("no secret of theirs") as other,
        peers_that_show(SECRET) as proven,
    ):
        assert isinstance(await asked(one, peer, BEAT), Answer)
        refused = await asked(other, peer, BEAT)
        assert isinstance(await asked(proven, peer, BEAT), Answer)
        await one.close()
        await until_answered(lambda: asked(other, peer, BEAT))

    assert MOST_STRANGERS > 1
    assert isinstance(refused, NoAnswer)
    assert "too many replicas without a secret" in refused.why


def test_peers_beyond_loopback_need_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n\n{NEXT_SECRET}\n")

    with pytest.raises(ValidationError, match="peer beyond loopback needs peer_secret_file"):
        Settings(peer="0.0.0.0:0")  # type: ignore[arg-type]

    assert Settings(peer="0.0.0.0:0", peer_secret_file=file).peer_secret_file == file  # type: ignore[arg-type]
    for loopback in ("127.0.0.1:0", "[::1]:0", "localhost:0"):
        assert Settings(peer=loopback).peer_secret_file is None  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [None, "", "short", f"{SECRET}\nshort", "sécret de beaucoup"])
def test_a_file_without_a_secret_is_rejected_without_quoting_it(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "secrets"
    if content is not None:
        file.write_text(content)

    with pytest.raises(ValidationError) as refused:
        Settings(peer_secret_file=file)

    (error,) = refused.value.errors()
    assert error["loc"] == ("peer_secret_file",)
    assert SECRET not in error["msg"]


# --- connections ------------------------------------------------------------------------------------


async def test_a_peer_that_is_gone_is_not_connected_to_any_more(tables: MemoryTables) -> None:
    async with peers_that_show(SECRET) as peers:
        async with a_peer(tables, SECRET) as gone:
            await answered(peers, gone, ListTopics("default"))
        assert isinstance(await asked(peers, gone, ListTopics("default")), NoAnswer)
        channels = [link.channel for link in peers._links.values()]
        async with a_peer(tables, SECRET) as peer:
            await answered(peers, peer, ListTopics("default"))
            await until(lambda: not peers._tasks)

            assert [channel.get_state() for channel in channels] == [grpc.ChannelConnectivity.SHUTDOWN]


async def test_peers_are_notified_over_new_connections(tables: MemoryTables) -> None:
    async with a_peer(tables, SECRET) as one, a_peer(tables, SECRET) as other, peers_that_show(SECRET) as peers:
        await peers.notify_released([one, other])
        await peers.notify_topics_changed([other, one], ["default"])


async def test_a_peer_says_which_shards_it_holds_in_which_epoch(tables: MemoryTables) -> None:
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        (owner,) = tables.owners()
        held = replace(owner, peer_address=peer.peer_address)
        others = [replace(held, epoch=2), replace(held, replica_id="its predecessor"), replace(held, shard_id=7)]

        assert await peers.held([held]) == {0}
        assert [await peers.held([each]) for each in others] == [set()] * 3
        assert await peers.held([replace(held, peer_address="127.0.0.1:1"), held]) == {0}
    async with peers_that_show(SECRET) as peers:
        assert await peers.held([held]) == set(), "it is gone"


async def test_a_peer_that_is_silent_holds_nothing(tables: MemoryTables) -> None:
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        (owner,) = tables.owners()
        async with a_line_to(peer, asyncio.Event()) as line:
            assert await peers.held([replace(owner, peer_address=line.peer_address)]) == set()


@asynccontextmanager
async def a_line_to(peer: Replica, passes: asyncio.Event) -> AsyncIterator[Replica]:
    """Another address of the peer: nothing passes while `passes` is not set, though every byte is acknowledged."""
    lines: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await passes.wait()
            writer.write(data)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*peer.peer_address.split(":"))
        both = (asyncio.create_task(copy(reader, there_writer)), asyncio.create_task(copy(there_reader, writer)))
        lines.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        writer.close()
        there_writer.close()

    line = await asyncio.start_server(carry, "127.0.0.1", 0)
    yield Replica(peer.replica_id, peer.address, f"127.0.0.1:{line.sockets[0].getsockname()[1]}")
    line.close()
    for each in lines:
        each.cancel()
    await asyncio.gather(*lines, return_exceptions=True)


async def test_connections_without_proof_are_few_and_short(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proven one stays; of the others the newest ones stay for a moment, whatever files the process opens."""
    monkeypatch.setattr(unproven, "PROOF_S", 0.3)
    monkeypatch.setattr(unproven, "SWEEP_EVERY_S", 0.02)
    few, files = Budgets(handshakes=Share(3, 3)), open_files()
    async with a_peer(tables, SECRET, budgets=few) as peer, peers_that_show(SECRET) as peers:
        await answered(peers, peer, ListTopics("default"))
        host, port = peer.peer_address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
        async with asyncio.timeout(EVENTUALLY_S):
            for reader, writer in silent:
                writer.write(PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                with suppress(OSError):
                    await reader.read()
                writer.close()

        (link,) = peers._links.values()
        assert link.channel.get_state() is grpc.ChannelConnectivity.READY
        assert (await answered(peers, peer, ListTopics("default"))).reply.error is ErrorCode.NONE
    await until(lambda: open_files() <= files + 10)


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


async def test_a_silent_peer_is_given_up_before_the_deadline(tables: MemoryTables) -> None:
    passes = asyncio.Event()
    passes.set()
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers, a_line_to(peer, passes) as line:
        await answered(peers, line, ListTopics("default"))
        passes.clear()  # as a process that is stopped, whose kernel goes on

        outcome = await asked(peers, line, ListTopics("default"))

    assert isinstance(outcome, NoAnswer)
    assert "ping timeout" in outcome.why


async def test_what_a_silent_peer_has_left_ends(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_of_peers, "KEEPALIVE_MS", 500)
    monkeypatch.setattr(server_of_peers, "KEEPALIVE_TIMEOUT_MS", 250)
    ended = asyncio.Event()

    async def watch(*_: object) -> AsyncIterator[JournalEvent]:
        yield EVENT
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(LocalCoordinator, "watch", watch)
    passes = asyncio.Event()
    passes.set()
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers, a_line_to(peer, passes) as line:
        watching = peers.watch(line, "default", "g", 0)
        await anext(watching)
        passes.clear()

        async with asyncio.timeout(EVENTUALLY_S):
            await ended.wait()
        passes.set()
        assert [event async for event in watching] == []
