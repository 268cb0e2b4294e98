"""What a client remembers of groups' owners: of groups that it has left nothing, and of many not all."""

from __future__ import annotations

import asyncio

from rota.client.transports.owners import Group, Owner, Owners, Recent
from rota.protocol.messages import Heartbeat, HeartbeatReply, LeaveGroup, LeaveReply, LeavingMember
from rota.protocol.wire.replies import Received

URL = "http://owner"
BEATING = Received(HeartbeatReply(generation_id=3, state="Stable"), 7, 2)
LEFT = Received(LeaveReply(), 8, 2)


async def find(_group: Group, _at: str) -> Owner:
    return Owner(URL, 2)


def a_beat(group_id: str) -> Heartbeat:
    return Heartbeat("default", group_id, "m-1", 3)


async def learn(owners: Owners, group_id: str) -> None:
    owners.answered(a_beat(group_id), BEATING, URL)
    await asyncio.gather(*owners._searches.values())
    assert owners.address_of(a_beat(group_id)) == URL


async def test_a_group_that_was_left_is_forgotten() -> None:
    owners = Owners(find, is_likely_found=True)
    for number in range(100):
        await learn(owners, f"g-{number}")
        leave = LeaveGroup("default", f"g-{number}", (LeavingMember("m-1"),))
        owners.answered(leave, LEFT, URL)
        assert owners.address_of(leave) is None
    await owners.close()
    assert (len(owners._known), len(owners._not_before), len(owners._searches)) == (0, 0, 0)


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    recent: Recent[str, int] = Recent(capacity=2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert recent.items() == [("a", 1), ("c", 3)]
    assert recent.get("b") is None
