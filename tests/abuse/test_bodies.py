"""Bodies that are too large, too many, compressed, or never whole."""

from __future__ import annotations

import gzip
from collections import Counter

import grpc
import pytest

from rota.v1 import coordinator_pb2 as pb
from tests.abuse.attackers import all_answered, all_closed, lines, until
from tests.abuse.target import DEADLINE_S, MIB, Target
from tests.grpc.clients import stub

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

FEW = pytest.param(40, id="40")
MANY = pytest.param(400, id="400", marks=pytest.mark.slow)
UNDER_WAY_MIB = 128
MOST_MIB = UNDER_WAY_MIB + 150
"""The rest is for bytes that are read but not parsed yet, buffers of connections, and the allocator's reserve."""
BOMB_MIB = 64

PATH = b"/v1/namespaces/default/groups/heavy/join"
START = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % PATH


def head(length: int, *headers: bytes) -> bytes:
    more = b"".join(header + b"\r\n" for header in headers)
    return START + b"Content-Length: %d\r\n%b\r\n" % (length, more)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [FEW, MANY])
async def test_unfinished_bodies_take_a_bounded_part_of_the_memory(count: int, target: Target) -> None:
    """Each is as large as a body may be. Those that are too much are asked to come back, and small calls pass."""
    all_but_one = b"x" * (8 * MIB - 1)
    async with target.unharmed(most_mib=MOST_MIB, what=f"{count} bodies of 8 MiB that lack a byte"):
        async with lines(target.port, count) as heavy:
            for line in heavy:
                line.say(head(8 * MIB))
                line.say(all_but_one)
            # Some of those that still come take the room of others that were refused.
            refused = count - UNDER_WAY_MIB // 8 - 4
            await until(lambda: sum(line.status == 429 for line in heavy) >= refused, DEADLINE_S)
            await target.still_serves()


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_bodies_that_are_too_large_are_refused_while_they_come(count: int, target: Target) -> None:
    async with target.unharmed(most_mib=MOST_MIB, what=f"{count} bodies of 12 MiB"):
        async with lines(target.port, count) as heavy:
            chunk = b"100000\r\n" + b"x" * MIB + b"\r\n"
            for line in heavy:
                line.say(START + b"Transfer-Encoding: chunked\r\n\r\n")
                line.say(chunk * 12)
            await all_answered(heavy, 120)
            statuses = Counter(line.status for line in heavy)
            # 0: a client that has not stopped after a second is cut off, and then the answer is lost on its way.
            assert set(statuses) <= {0, 413, 429}
            assert statuses[413]


async def test_a_bomb_is_not_unpacked_over_http(target: Target) -> None:
    bomb = gzip.compress(bytes(2 * BOMB_MIB * MIB), 9)
    async with target.unharmed(most_mib=BOMB_MIB, what="20 bombs of 128 MiB over HTTP"):
        async with lines(target.port, 20) as bombers:
            for line in bombers:
                line.say(head(len(bomb), b"Content-Encoding: gzip", b"Connection: close") + bomb)
            await all_answered(bombers, 60)
            assert {line.status for line in bombers} == {415}


async def test_a_bomb_is_not_unpacked_over_grpc(target: Target) -> None:
    """The client's library packs these bytes, and the server's would unpack them before it counts them."""
    request = pb.HeartbeatRequest(namespace="default", group_id="heavy", member_id="x" * (BOMB_MIB * MIB))
    options = [("grpc.max_send_message_length", -1)]
    async with target.unharmed(most_mib=BOMB_MIB / 2, what="a bomb of 64 MiB over gRPC"):
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{target.grpc_port}", options, compression=grpc.Compression.Gzip
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub(channel).Heartbeat(request)
            assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("path", [PATH, b"/healthz"], ids=["a call", "a probe"])
async def test_endless_trailers_take_no_memory(path: bytes, target: Target) -> None:
    """Before the answer and after it: trailers are dropped, and whatever frames a body is bounded."""
    request = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" % path
    async with target.unharmed(most_mib=64, what="20 trailers of 8 MiB"):
        async with lines(target.port, 20) as endless:
            for line in endless:
                line.say(request)
                line.say(b"x: y\r\n" * (8 * MIB // 6))
            await all_closed(endless, DEADLINE_S)
