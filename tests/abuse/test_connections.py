"""Connections that say too little, too slowly, or nothing, and those that never listen."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.abuse.attackers import Line, all_closed, lines, until
from tests.abuse.target import Target

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

FEW = pytest.param(500, id="500")
MANY = pytest.param(2_000, id="2000", marks=pytest.mark.slow)
HEAD_LIMIT_S = 10
IDLE_LIMIT_S = 75
WRITE_LIMIT_S = 30
SLACK_S = 40
"""For a busy machine, and for thousands of connections at once."""

WAITING_FOR_A_LEADER = r'rota_waiters\{operation="leaderGet"'

CLIENT_HELLO = bytes.fromhex("16030100d8010000d40303") + bytes(range(200))
"""The beginning of a TLS handshake, as browsers send it that were given https:// by mistake."""


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_heads_that_drip_hold_nobody_up(count: int, target: Target) -> None:
    async with target.unharmed(most_mib=20 + count / 40, what=f"{count} dripping heads"):
        async with lines(target.port, count) as loris:
            for drop in (b"GET /healthz HTTP/1.1\r\n", b"Host: localhost\r\n", b"X-", b"a: b\r\n"):
                for line in loris:
                    line.say(drop)
                await target.still_serves()
            assert not any(line.status for line in loris)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2_000])
async def test_heads_that_drip_on_are_cut_off(count: int, target: Target) -> None:
    async with (
        target.unharmed(most_mib=120, what=f"{count} heads that drip to the end"),
        lines(target.port, count) as loris,
    ):
        for line in loris:
            line.say(b"GET /healthz HTTP/1.1\r\n")
        async with asyncio.TaskGroup() as tasks:
            dripping = tasks.create_task(drip(loris, b"X-a: b\r\n"))
            await all_closed(loris, HEAD_LIMIT_S + SLACK_S)
            dripping.cancel()
        assert not any(line.status for line in loris)


@pytest.mark.slow
async def test_connections_that_say_nothing_are_closed(target: Target) -> None:
    async with target.unharmed(most_mib=60, what="2,000 silent connections"), lines(target.port, 2_000) as silent:
        await all_closed(silent, IDLE_LIMIT_S + SLACK_S)


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_callers_that_vanish_while_they_wait_are_forgotten(count: int, target: Target) -> None:
    """Theirs are resets: neither side closes in order."""
    async with target.unharmed(most_mib=20 + count / 20, what=f"{count} callers that vanish"):
        async with lines(target.port, count) as callers:
            for line in callers:
                line.say(
                    b"GET /v1/namespaces/default/groups/nobody/leader?wait_ms=50000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
                )
            await target.until_metric(WAITING_FOR_A_LEADER, count)
            for line in callers:
                line.reset()
            await target.until_metric(WAITING_FOR_A_LEADER, 0)


async def test_a_pipeline_of_thousands_is_answered_in_order(target: Target) -> None:
    async with target.unharmed(most_mib=40, what="10,000 requests in one write"):
        async with lines(target.port, 1) as (line,):
            line.say(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000)
            line.say(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await all_closed([line], 60)


async def test_who_never_reads_costs_no_more_than_a_buffer(target: Target) -> None:
    """The answers are large: a client asks for them again and again, and takes none of them."""
    async with target.unharmed(most_mib=60, what="50 clients that never read"), lines(target.port, 50) as deaf:
        ask_for_more_than_buffers_hold(deaf)
        await target.still_serves()


@pytest.mark.slow
async def test_who_never_reads_is_cut_off(target: Target) -> None:
    async with target.unharmed(most_mib=60, what="50 clients that never read, to the end"):
        async with lines(target.port, 50) as deaf:
            ask_for_more_than_buffers_hold(deaf)
            # A client that does not read does not see that it was cut off: the server's own sockets show it.
            await until(lambda: not target.holds(deaf), WRITE_LIMIT_S + SLACK_S)


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_tls_and_noise_on_the_plain_ports_are_turned_away(count: int, target: Target) -> None:
    noise = random.Random(4_711)
    async with target.unharmed(most_mib=20 + count / 20, what=f"{count} handshakes and as much noise on each port"):
        for port in (target.port, target.grpc_port):
            async with lines(port, count) as strangers:
                for line in strangers:
                    line.say(CLIENT_HELLO if noise.random() < 0.5 else noise.randbytes(noise.randint(300, 3_000)))
                    line.say(b"\r\n\r\n")
                await all_closed(strangers, 60)
            assert {line.status for line in strangers} <= {0, 400, 431}


async def drip(loris: list[Line], drop: bytes) -> None:
    """One drop for each of them, a second long, until cancelled."""
    while True:
        for line in loris:
            line.say(drop)
        await asyncio.sleep(1)


def ask_for_more_than_buffers_hold(deaf: list[Line]) -> None:
    for line in deaf:
        line.stop_reading()
        line.say(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
