"""Heartbeats of one stream: more than one message may carry go out in several."""

from __future__ import annotations

import asyncio

from rota.client.transports.waiting_beats import MAX_BEATS, WaitingBeats
from rota.protocol.messages import Heartbeat
from rota.wire.heartbeats import MAX_HEARTBEATS


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
