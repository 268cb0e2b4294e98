"""What docs/protocol.md says of two rules that a reader cannot see in a reference: the coordinator does as it says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from rota.core.types.leader import Candidate, encode_candidate
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, DescribeReply, JoinGroup, JoinReply, Protocol
from tests.client.stage import a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "protocol.md").read_text().split())


def a_join(member_id: str = "") -> JoinGroup:
    return JoinGroup("default", "g", "worker", (Protocol("p"),), 30_000, 30_000, member_id, wait_ms=20_000)


@in_virtual_time
async def test_a_pending_id_does_not_delay_the_first_generation() -> None:
    async with a_coordinator() as coordinator:
        cable = a_worker(coordinator).cable
        asked = [(await cable.send(a_join(), timeout_ms=30_000)).reply for _ in range(2)]
        used = asked[0]
        assert isinstance(used, JoinReply)
        joined = (await cable.send(a_join(used.member_id), timeout_ms=30_000)).reply
        group = (await cable.send(DescribeGroup("default", "g"), timeout_ms=1_000)).reply

    assert isinstance(joined, JoinReply)
    assert isinstance(group, DescribeReply)
    assert [reply.error for reply in asked] == [ErrorCode.MEMBER_ID_REQUIRED] * 2
    assert (joined.generation_id, joined.pending) == (1, False)
    assert (len(group.members), group.pending_members) == (1, 1)
    assert "but not the first phase of an empty group: that one ends with its initial delay" in PAGE


@in_virtual_time
async def test_a_candidate_s_priority_is_shown_and_waits_its_time() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        elections = [
            worker.client.leader("writer", metadata=encode_candidate(Candidate("", priority))) for priority in (1, 100)
        ]
        async with elections[0]:
            await until(lambda: elections[0].is_leader)
            async with elections[1]:
                await elections[1].member.wait_assigned()
                await asyncio.sleep(5)
                described = (await worker.client.describe_group("writer")).members
                leads = [election.is_leader for election in elections]

    assert [(member.metadata_decoded or {}).get("priority") for member in described] == [1, 100]
    assert leads == [True, False]
    assert re.search(r"`leader` \|.*one call elects the candidate of the highest priority", PAGE)
