"""What a client remembers of groups' owners: of groups that it has left nothing, and of many not all."""

from __future__ import annotations

import asyncio

import pytest

from rota.client.transports import owners as owners_of_groups
from rota.client.transports.owners import Group, Owner, Owners
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


async def test_of_many_groups_not_all_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_of_groups, "MOST_GROUPS", 3)
    owners = Owners(find, is_likely_found=True)
    for number in range(10):
        await learn(owners, f"g-{number}")
        assert len(owners._known) <= 3
    await owners.close()
