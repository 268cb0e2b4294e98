"""One token, one holder: a static member's successor never has its predecessor's fencing token (ADR 43)."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from rota.core.group.records import MemberFenced
from rota.core.group.shard import Shard
from rota.core.types.leader import decode_election
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import LAST_TAKEOVER, MAX_TOKEN, NO_TOKEN, fencing_token, generation_of, takeover_of
from tests.unit.group.driver import (
    DELAY_MS,
    GROUP_ID,
    NAMESPACE,
    Core,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_shard,
)

KEY = (NAMESPACE, GROUP_ID)


def verified(core: Core, token: int | None = None, generation_id: int = -1, member_id: str = "") -> m.FenceReply:
    reply = core.ask(m.VerifyFence(*KEY, generation_id, member_id, fencing_token=token))
    assert isinstance(reply, m.FenceReply)
    return reply


def taken_over(core: Core, instance_id: str, member_id: str) -> int:
    """The token of a successor, which its join and its sync agree on."""
    joined = core.ask(a_join(new=member_id, instance=instance_id))
    synced = core.ask(a_sync(member_id, core.generation_id, instance_id))
    assert joined.fencing_token == synced.fencing_token
    return int(synced.fencing_token)


def tokens(core: Core) -> dict[str, int]:
    return {member.member_id: member.fencing_token for member in core.ask(m.DescribeGroup(*KEY)).members}


# --- the number ----------------------------------------------------------------------------------------


def test_a_token_is_a_generation_and_a_takeover() -> None:
    token = fencing_token(7, 3)

    assert (generation_of(token), takeover_of(token)) == (7, 3)
    assert fencing_token(7, LAST_TAKEOVER) < fencing_token(8)
    assert fencing_token(2**31 - 1, LAST_TAKEOVER) == MAX_TOKEN < 2**53, "JSON carries it"
    assert (fencing_token(-1), generation_of(NO_TOKEN), takeover_of(NO_TOKEN)) == (NO_TOKEN, -1, 0)


# --- holders of tokens ---------------------------------------------------------------------------------


def test_each_successor_has_a_higher_token() -> None:
    core = a_stable_group(members=2, static=2)

    first = taken_over(core, "i1", "again")
    second = taken_over(core, "i1", "once-more")
    other = taken_over(core, "i0", "m0-again")

    assert fencing_token(1) < first < second < other < fencing_token(2)
    assert tokens(core) == {"m0-again": other, "once-more": second}


def test_a_takeover_changes_no_other_members_token() -> None:
    core = a_stable_group(members=2, static=2)
    before = core.ask(a_sync("m0", 1, "i0")).fencing_token

    taken_over(core, "i1", "again")

    assert core.ask(a_sync("m0", 1, "i0")).fencing_token == before == fencing_token(1)
    assert (core.group.state, core.generation_id) == ("Stable", 1)


def test_a_successor_keeps_its_token_when_it_asks_again() -> None:
    core = a_stable_group(members=2, static=2)
    token = taken_over(core, "i1", "again")
    taken_over(core, "i0", "m0-again")

    assert core.ask(a_sync("again", 1, "i1")).fencing_token == token


def test_a_new_generation_counts_from_zero() -> None:
    core = a_stable_group(members=2, static=2)
    taken_over(core, "i1", "again")

    core.ask(a_leave("m0"))
    call = core.send(a_join("again", instance="i1"))

    assert core.answer(call).fencing_token == fencing_token(2)
    assert (core.group.takeovers, core.group.members["again"].takeover) == (0, 0)


def test_a_resync_counts_from_zero() -> None:
    core = a_stable_group(members=2, static=2)
    taken_over(core, "i1", "again")

    reply = core.ask(a_sync("m0", 1, "i0", again=b"other"))

    assert reply.fencing_token == fencing_token(2)
    assert core.ask(a_sync("again", 2, "i1")).fencing_token == fencing_token(2)


def test_takeovers_survive_another_owner() -> None:
    core = a_stable_group(members=2, static=2)
    token = taken_over(core, "i1", "again")

    core.restart()

    assert core.ask(a_sync("again", 1, "i1")).fencing_token == token
    assert taken_over(core, "i1", "once-more") > token


def test_the_journal_says_the_number_of_a_takeover() -> None:
    core = a_stable_group(members=2, static=2)

    taken_over(core, "i1", "again")

    assert core.last("member_fenced") == MemberFenced("m1", "again", "i1", "another process joined as i1", 1)


def test_when_the_numbers_are_used_up_the_group_rebalances() -> None:
    core = a_stable_group(members=1, static=1)
    image = core.image()
    spent = dataclasses.replace(image, groups=(dataclasses.replace(image.groups[0], takeovers=LAST_TAKEOVER - 2),))
    core.shard, _ = Shard.load(spent, core.limits, core.now_ms)
    core.checking = False

    last = taken_over(core, "i0", "again")
    call = core.send(a_join(new="once-more", instance="i0"))

    assert takeover_of(last) == LAST_TAKEOVER - 1
    assert core.answer(call).fencing_token == fencing_token(2), "no share is given with a number that does not fit"


def test_the_leader_and_its_share_have_the_same_token() -> None:
    core = an_empty_shard()
    join = a_join(new="m0", instance="i0", protocols=(("single", b""),), protocol_type="leader")
    core.send(join)
    core.advance(DELAY_MS)

    again = core.ask(replace(join, new_member_id="again"))
    synced = core.ask(a_sync("again", 1, "i0"))
    election = decode_election(synced.assignment)

    assert (election.leader_id, election.token) == ("again", fencing_token(1, 1))
    assert again.fencing_token == synced.fencing_token == election.token
    assert core.ask(m.GetLeader(*KEY)).fencing_token == election.token


# --- the fence -----------------------------------------------------------------------------------------


def test_the_fence_rejects_the_token_of_a_predecessor() -> None:
    core = a_stable_group(members=1, static=1)
    old = core.ask(a_sync("m0", 1, "i0")).fencing_token
    new = taken_over(core, "i0", "again")

    assert verified(core, old).error is ErrorCode.MEMBER_ID_REQUIRED
    assert verified(core, old, member_id="m0").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert verified(core, old, member_id="again").error is ErrorCode.ILLEGAL_GENERATION
    assert verified(core, new) == verified(core, new, member_id="again") == verified(core, new, 1)
    assert verified(core, new).is_member
    assert verified(core, new).is_leader


def test_a_successors_token_is_over_once_it_is_replaced() -> None:
    core = a_stable_group(members=1, static=1)
    first = taken_over(core, "i0", "again")
    taken_over(core, "i0", "once-more")

    assert verified(core, first).error is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("number", [0, 1])
def test_a_token_of_another_generation_passes_no_fence(number: int) -> None:
    core = a_stable_group(members=1, static=1)
    taken_over(core, "i0", "again")

    for generation_id in (0, 2):
        assert verified(core, fencing_token(generation_id, number)).error is ErrorCode.ILLEGAL_GENERATION
    assert verified(core, fencing_token(1, 1), generation_id=2).error is ErrorCode.ILLEGAL_GENERATION


def test_a_generation_alone_passes_until_a_takeover() -> None:
    core = a_stable_group(members=2, static=1)

    before = verified(core, generation_id=1)
    taken_over(core, "i0", "again")
    after = verified(core, generation_id=1)

    assert before.error is ErrorCode.NONE
    assert after.error is ErrorCode.MEMBER_ID_REQUIRED
    assert "taken over" in after.detail
    assert verified(core, generation_id=1, member_id="m1").fencing_token == fencing_token(1)
    assert verified(core, fencing_token(1), member_id="m1").error is ErrorCode.NONE


def test_a_newcomer_that_was_taken_over_passes_no_token_on() -> None:
    core = a_stable_group(members=1, static=1)
    core.send(a_join(new="n", instance="in"))

    core.send(a_join(new="n-again", instance="in"))

    assert core.group.takeovers == 0
    assert tokens(core) == {"m0": fencing_token(1), "n-again": NO_TOKEN}
