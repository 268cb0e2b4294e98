"""One request has one answer: no body is parsed as a request, and the next request has an answer of its own."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import suppress
from random import Random

import pytest

from tests.fuzz.plants import PLANTS
from tests.http.both_ways import Both, Listener, a_request, turns
from tests.http.odd_requests import OddRequest, answers_in, complaint, odd_request, second_request, take_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")
SEED = 20_261_129
AT_ONCE = 20
KINDS = ("fast", "plain")


async def wrong_answers(listener: Listener, numbers: range) -> tuple[dict[int, str], Counter[str]]:
    """The complaints by the number of the request, and the statuses of the odd requests' answers."""
    found: dict[int, str] = {}
    statuses = Counter[str]()
    slots = asyncio.Semaphore(AT_ONCE)

    async def play(number: int) -> None:
        request = odd_request(Random(f"{SEED}:{number}"))
        async with slots:
            received = await exchange(listener, request, number)
        answers = answers_in(received, to_head=request.is_head)
        statuses.update([str(answers[0].status) if answers else "none"])
        if wrong := complaint(request, answers, number):
            found[number] = f"{wrong}: {request.data!r}"

    async with asyncio.TaskGroup() as tasks:
        for number in numbers:
            tasks.create_task(play(number))
    return found, statuses


async def exchange(listener: Listener, request: OddRequest, number: int) -> bytes:
    """All that is answered to an odd request, which comes in its parts, and to a second caller's request behind it.

    Of every third connection the server knows a head already. A plain socket: a stream forgets the answers that it has
    received if its next write meets a connection that is closed.
    """
    loop, received = asyncio.get_running_loop(), b""
    with socket.socket() as plug:
        plug.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_connect(plug, ("127.0.0.1", listener.port))
            for _ in range(2 if number % 3 == 0 else 0):
                await loop.sock_sendall(plug, a_request())
                beat = b""
                while take_answer(beat, to_head=False) is None:
                    beat += await loop.sock_recv(plug, 65_536)
            with suppress(OSError):
                for part in (*request.parts, second_request(number, "Connection: close")):
                    await loop.sock_sendall(plug, part)
                    await turns(3)
                if not request.is_whole:
                    await turns(100)
                    plug.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while part := await loop.sock_recv(plug, 65_536):
                    received += part
    return received


async def checked(both: Both, kind: str, numbers: range) -> Counter[str]:
    """The statuses of the answers; each odd request was answered once, and the second caller got its own answer."""
    found, statuses = await wrong_answers(both.fast if kind == "fast" else both.plain, numbers)
    assert found == {}
    # The battery has requests that are answered, and some that are refused.
    assert statuses["400"] > len(numbers) // 10
    assert statuses["200"] > len(numbers) // 50
    print(f"{kind}: {len(numbers):,} odd requests, each with a second one behind it: {dict(statuses)}")
    return statuses


@pytest.mark.parametrize("kind", KINDS)
async def test_each_of_many_odd_requests_has_one_answer(kind: str, servers: Both) -> None:
    await checked(servers, kind, range(1_000))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
async def test_each_of_ten_thousand_has_one_answer(kind: str, servers: Both) -> None:
    await checked(servers, kind, range(1_000, 11_000))


async def test_a_planted_parser_of_bodies_is_found(servers: Both) -> None:
    with PLANTS["a_body_that_is_the_next_request"].planted():
        found, _ = await wrong_answers(servers.fast, range(200))

    assert any("the body was answered as a request" in each for each in found.values())
