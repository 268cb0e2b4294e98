"""Thousands of calls that wait at once are a matter of some memory, and of nothing else."""

from __future__ import annotations

import pytest

from tests.abuse.attackers import AT_ONCE, all_answered, lines
from tests.abuse.target import Target

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

WAITERS = r'rota_waiters\{operation="leaderGet"'
MIB_OF_A_THOUSAND = 80
"""More than a parked call takes, so that a leak of some kilobytes a call would show."""


@pytest.mark.parametrize("count", [500, pytest.param(2_000, marks=pytest.mark.slow)])
async def test_all_calls_that_wait_for_a_leader_are_answered(count: int, target: Target) -> None:
    most = 20 + MIB_OF_A_THOUSAND * count / 1_000
    group = f"/v1/namespaces/default/groups/awaited-{count}"
    async with target.unharmed(most_mib=most, what=f"{count} parked calls"), lines(target.port, count) as waiting:
        for number, line in enumerate(waiting, 1):
            line.say(
                f"GET {group}/leader?wait_ms=50000&after_generation=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            if number % AT_ONCE == 0:
                await target.until_metric(WAITERS, number)
        print(f"{count} calls are parked at {target.resident_mib:.0f} MiB")
        await target.still_serves()

        body = {"protocol_type": "leader", "protocols": [{"name": "single"}], "group_instance_id": "one"}
        await target.ask("POST", f"{group}/join", body)

        await all_answered(waiting, 60)
        assert {line.status for line in waiting} == {200}
        await target.until_metric(WAITERS, 0)
