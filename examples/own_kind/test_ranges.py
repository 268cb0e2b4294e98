"""Tests of the key ranges without a server: pytest examples/own_kind/test_ranges.py."""

import asyncio

import rota.testing
from examples.own_kind.ranges import assign
from rota.client import Client, Member
from rota.testing import Coordinator

V1, V2 = {"v1": b""}, {"v2": b"4", "v1": b""}


def a_member(client: Client, protocols: dict[str, bytes]) -> Member[bytes]:
    return client.member("ranges", protocol_type="key-ranges", protocols=protocols, assign=assign)


async def upgraded() -> None:
    async with Coordinator() as coordinator:
        stays = a_member(coordinator.connect(), V2)
        async with stays:
            async with a_member(coordinator.connect(), V1) as leaves:
                await asyncio.sleep(10)
                assert {stays.assignment, leaves.assignment} == {b"0-499", b"500-999"}
            async with a_member(coordinator.connect(), {"v2": b"1"}) as comes:
                await asyncio.sleep(10)
                assert {stays.assignment, comes.assignment} in ({b"0-799", b"800-999"}, {b"0-199", b"200-999"})
            await asyncio.sleep(10)
            assert stays.assignment == b"0-999"


def test_a_group_shares_by_cores_once_the_last_old_member_is_gone() -> None:
    rota.testing.run(upgraded())


async def paused() -> None:
    async with Coordinator() as coordinator:
        async with a_member(coordinator.connect(), V2) as member:
            await member.wait_assigned()
            rota.testing.pause(20)
            assert member.assignment is None  # Its deadline has passed: it must not work on its range.
            await asyncio.sleep(20)
            assert member.assignment == b"0-999"


def test_a_paused_process_holds_no_range() -> None:
    rota.testing.run(paused())
