"""Heartbeats of one stream: more than one message may carry go out in several, and news ends their waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.client.transports.waiting_beats import MAX_BEATS, WaitingBeats
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatError, HeartbeatManyReply, HeartbeatReply
from rota.protocol.wire.heartbeats import MAX_HEARTBEATS
from rota.protocol.wire.replies import Received
from rota.v1 import coordinator_pb2 as pb

PLACE: dict[str, Any] = {"namespace": "n", "group_id": "g", "revision": 7, "epoch": 1}
SHARES = [pb.MemberAssignment(member_id="m", assignment=b"leads")]
NEWS = {
    "rebalance": pb.Rebalance(**PLACE, member_ids=["m"], generation_id=1),
    "election": pb.Election(**PLACE, members=SHARES, generation_id=2, leader_id="m"),
    "generation": pb.Generation(**PLACE, members=SHARES, generation_id=2),
    "fenced": pb.Fenced(**PLACE, member_ids=["m"], code="UNKNOWN_MEMBER_ID"),
}
ENDS = {"rebalance": ErrorCode.REBALANCE_IN_PROGRESS, "election": ErrorCode.REBALANCE_IN_PROGRESS} | {
    "generation": ErrorCode.NONE,
    "fenced": ErrorCode.UNKNOWN_MEMBER_ID,
}


def answers(*errors: HeartbeatError) -> dict[tuple[str, str], Received]:
    return {("n", "g"): Received(HeartbeatManyReply(generation_id=1, state="Stable", errors=errors), 6, 1)}


async def test_more_heartbeats_than_a_message_carries_are_split() -> None:
    flushes: list[int] = []
    beats = WaitingBeats(lambda: flushes.append(len(beats.take())))
    added = [beats.add(Heartbeat("n", "g", f"m{n}", 1), 0) for n in range(2 * MAX_BEATS + 1)]

    flushes.append(len(beats.take()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [size for size in flushes if size] == [MAX_BEATS, MAX_BEATS, 1]
    assert MAX_BEATS <= MAX_HEARTBEATS
    for beat in added:
        beats.discard(beat)


@pytest.mark.parametrize("kind", NEWS)
async def test_news_that_overtakes_an_answer_ends_the_wait(kind: str) -> None:
    beats = WaitingBeats(lambda: None)
    beat = beats.add(Heartbeat("n", "g", "m", 1), 60_000)
    sent = beats.take()

    beats.on_news(NEWS[kind], kind)
    assert not beat.outcome.done(), "nothing has shown yet that it renewed the session"
    beats.on_answers(sent, answers())

    received = beat.outcome.result()
    assert isinstance(received.reply, HeartbeatReply)
    assert (received.reply.error, received.revision) == (ENDS[kind], 7)
    assert (received.reply.entered is not None) == (kind == "election")
    beats.discard(beat)


async def test_news_of_a_call_that_is_over_is_forgotten() -> None:
    beats = WaitingBeats(lambda: None)
    former = beats.add(Heartbeat("n", "g", "m", 1), 60_000)
    beats.take()
    beats.on_news(NEWS["rebalance"], "rebalance")
    beats.discard(former)

    beat = beats.add(Heartbeat("n", "g", "m", 1), 60_000)
    beats.on_answers(beats.take(), answers())

    assert not beat.outcome.done()
    beats.discard(beat)
