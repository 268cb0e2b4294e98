"""The clock of deadlines: it counts time asleep, and threads may read it."""

from __future__ import annotations

import asyncio

from rota.client.clock import SessionClock
from tests.client.stage import a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time, pause


@in_virtual_time
async def test_time_asleep_counts() -> None:
    loop, asleep_s = asyncio.get_running_loop(), [100.0]
    clock = SessionClock(loop, lambda: asleep_s[0])
    began_ms = clock.now_ms()
    asleep_s[0] += 3_600
    pause(1)
    assert clock.now_ms() - began_ms == 3_601_000
    assert clock.loop_time(clock.now_ms() + 500) - loop.time() == 0.5


@in_virtual_time
async def test_a_share_has_ended_when_the_machine_wakes_up_too_late() -> None:
    async with a_coordinator() as coordinator:
        worker, asleep_s = a_worker(coordinator), [0.0]
        async with worker.client as client, worker.member() as member:
            member._driver._clock = SessionClock(asyncio.get_running_loop(), lambda: asleep_s[0])
            await member.wait_assigned()
            worker.cable.is_silent = True
            asleep_s[0] = 3_600.0
            assert member.assignment is None
            client._context.check_deadlines()
            await until(lambda: "lost" in worker.deeds)
            worker.cable.is_silent = False
