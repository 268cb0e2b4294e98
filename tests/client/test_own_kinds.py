"""Groups of a kind of the user's own: the chosen protocol, metadata that changes, cooperative members, a resync."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rota.client import Client, Generation, Member
from tests.client.stage import SESSION_S, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

NUMBERS = bytes(range(4))


def left_of(share: bytes, other: bytes) -> bytes:
    return bytes(number for number in share if number not in other)


def shared(generation: Generation) -> dict[str, bytes]:
    """The numbers in turn, without those that another member says it holds."""
    members = generation.members
    shares = {each.member_id: NUMBERS[index :: len(members)] for index, each in enumerate(members)}
    return {
        each.member_id: left_of(
            shares[each.member_id], b"".join(other.metadata for other in members if other is not each)
        )
        for each in members
    }


def cooperative(client: Client) -> Member[bytes]:
    return client.member(
        "g",
        protocol_type="numbers",
        protocols=lambda held, _generation_id: {"cooperative": held or b""},
        assign=shared,
        without=left_of,
        session_timeout=SESSION_S,
    )


@in_virtual_time
async def test_assign_knows_which_protocol_was_chosen() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        seen: list[tuple[str, list[bytes]]] = []

        def assign(generation: Generation) -> dict[str, bytes]:
            seen.append((generation.protocol_name, sorted(each.metadata for each in generation.members)))
            return {}

        def a_member(**protocols: bytes) -> Member[bytes]:
            return a_worker(coordinator).client.member(
                "g", protocol_type="own", protocols=protocols, assign=assign, session_timeout=SESSION_S
            )

        old = await stack.enter_async_context(a_member(v1=b"old"))
        await until(lambda: len(seen) == 1)
        await stack.enter_async_context(a_member(v2=b"2", v1=b"1"))
        await until(lambda: len(seen) == 2)
        await old.close()
        await until(lambda: len(seen) == 3)

    assert seen == [("v1", [b"old"]), ("v1", [b"1", b"old"]), ("v2", [b"2"])]


@in_virtual_time
async def test_metadata_changes_with_the_next_join() -> None:
    async with a_coordinator() as coordinator:
        said, seen = [b"one"], list[bytes]()

        def assign(generation: Generation) -> dict[str, bytes]:
            seen.extend(each.metadata for each in generation.members)
            return {}

        async with a_worker(coordinator).client.member(
            "g", protocol_type="own", protocols=lambda *_: {"v1": said[-1]}, assign=assign
        ) as member:
            await until(lambda: seen == [b"one"])
            said.append(b"two")
            member.rejoin("its metadata changed")
            await until(lambda: seen == [b"one", b"two"])


@in_virtual_time
async def test_a_cooperative_member_is_not_static() -> None:
    async with a_coordinator() as coordinator:
        with pytest.raises(ValueError, match="cannot be static"):
            a_worker(coordinator).client.member(
                "g",
                protocol_type="numbers",
                protocols={"cooperative": b""},
                assign=shared,
                without=left_of,
                group_instance_id="i",
            )


@in_virtual_time
async def test_assign_is_needed_unless_the_server_assigns() -> None:
    async with a_coordinator() as coordinator:
        client = a_worker(coordinator).client
        with pytest.raises(ValueError, match="the server does not assign by v1"):
            client.member("g", protocol_type="own", protocols={"server:x": b"", "v1": b""})

        await client.put_topic("work", 2)
        subscription = b'{"topics": ["work"]}'
        async with client.member("g", protocol_type="consumer", protocols={"server:range": subscription}) as member:
            await until(lambda: member.assignment == b'{"topics":{"work":[0,1]}}')


@in_virtual_time
@pytest.mark.parametrize("cause", ["loss", "rebalance"])
async def test_metadata_that_raises_ends_the_work_and_the_member(cause: str) -> None:
    async with a_coordinator() as coordinator:
        worker, deeds, is_gone = a_worker(coordinator), list[str](), False

        def protocols(_held: bytes | None, _generation_id: int) -> dict[str, bytes]:
            if is_gone:
                raise OSError("the metadata cannot be read")
            return {"v1": b""}

        member = worker.client.member(
            "g",
            protocol_type="own",
            protocols=protocols,
            assign=lambda generation: {each.member_id: b"all" for each in generation.members},
            session_timeout=SESSION_S,
            on_assigned=lambda *_: deeds.append("assigned"),
            on_revoked=lambda _: deeds.append("revoked"),
            on_lost=lambda _: deeds.append("lost"),
        )
        await member.start()
        await until(lambda: member.assignment == b"all")
        is_gone = True
        if cause == "loss":
            worker.cable.pull()
        else:
            member.rejoin("for the test")
        await asyncio.sleep(2 * SESSION_S)
        with pytest.raises(OSError, match="cannot be read"):
            await member.close()

        assert deeds == ["assigned", "lost" if cause == "loss" else "revoked"]
