"""Groups of the type `permits` in the core: grants, releases, takeovers, and tokens after a raised generation."""

from __future__ import annotations

from rota.core.types.permits import PROTOCOL_NAME, PROTOCOL_TYPE, PermitShare, Wish, decode_share, encode_wish
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN, fencing_token
from rota.protocol.messages import RebalanceGroup
from tests.unit.group.driver import (
    GROUP_ID,
    NAMESPACE,
    SESSION_MS,
    Core,
    a_heartbeat,
    a_join,
    a_leave,
    a_sync,
    an_empty_shard,
)
from tests.unit.group.served import Listed, a_served_group, end_join_phase
from tests.unit.group.test_raised_generations import FLOOR, raise_floor


def wishing(permits: int) -> Listed:
    return ((PROTOCOL_NAME, encode_wish(Wish(permits))),)


def a_group_with_permits(permits: int = 1, members: int = 2) -> Core:
    return a_served_group(wishing(permits), members, PROTOCOL_TYPE)


def static_join(core: Core, member_id: str, instance: str, permits: int = 1) -> int:
    request = a_join(new=member_id, instance=instance, protocols=wishing(permits), protocol_type=PROTOCOL_TYPE)
    return core.send(request)


def a_static_group(members: int = 2) -> Core:
    core = an_empty_shard()
    for number in range(members):
        static_join(core, f"m{number}", f"i{number}")
    end_join_phase(core)
    return core


def again(core: Core, *member_ids: str, permits: int = 1) -> None:
    """The join phase under way ends with these members."""
    for member_id in member_ids:
        core.send(a_join(member_id, protocols=wishing(permits), protocol_type=PROTOCOL_TYPE))
    end_join_phase(core)


def share(core: Core, member_id: str) -> PermitShare:
    answer = core.ask(a_sync(member_id, core.generation_id))
    assert answer.error is ErrorCode.NONE
    return decode_share(answer.assignment)


def test_permits_are_granted_as_the_join_phase_ends() -> None:
    core = a_group_with_permits(permits=2, members=3)

    assert core.group.state == "Stable"
    assert [share(core, each).permit for each in core.ids] == [0, 1, None]
    assert [share(core, each).token for each in core.ids] == [fencing_token(1), fencing_token(1), NO_TOKEN]


def test_a_permit_passes_on_and_the_other_holders_keep_theirs() -> None:
    core = a_group_with_permits(permits=2, members=4)

    core.ask(a_leave("m0"))
    again(core, "m3", "m2", "m1", permits=2)

    assert [(share(core, each).permit, share(core, each).token) for each in ("m1", "m2", "m3")] == [
        (1, fencing_token(1)),
        (0, fencing_token(2)),
        (None, NO_TOKEN),
    ]


def test_a_silent_holders_permit_passes_on_after_its_session() -> None:
    core = a_group_with_permits()
    core.advance(SESSION_MS - 1)
    core.ask(a_heartbeat("m1", 1))
    held_until = core.group.state

    core.advance(1)
    again(core, "m1")

    assert (held_until, list(core.group.members)) == ("Stable", ["m1"])
    assert (share(core, "m1").permit, share(core, "m1").token) == (0, fencing_token(2))


def test_a_newcomers_rebalance_changes_no_holders_token() -> None:
    core = a_group_with_permits(members=1)

    core.ids.append("m1")
    core.ask(a_join(new="m1", protocols=wishing(1), protocol_type=PROTOCOL_TYPE))
    again(core, "m1", "m0")

    assert core.generation_id == 2
    assert (share(core, "m0").token, share(core, "m1").permit) == (fencing_token(1), None)


def test_a_static_successor_changes_no_others_earlier_token() -> None:
    core = an_empty_shard()
    for each in range(2):
        static_join(core, f"m{each}", f"i{each}", permits=2)
    end_join_phase(core)
    core.ask(RebalanceGroup(NAMESPACE, GROUP_ID))
    for each in range(2):
        core.send(a_join(f"m{each}", instance=f"i{each}", protocols=wishing(2), protocol_type=PROTOCOL_TYPE))

    static_join(core, "back", "i1", permits=2)

    assert (core.group.state, core.generation_id) == ("Stable", 2)
    assert (share(core, "m0").token, share(core, "back").token) == (fencing_token(1), fencing_token(2, 1))


def test_a_static_member_with_other_metadata_rebalances() -> None:
    core = a_static_group()

    static_join(core, "back", "i0", permits=2)
    assert core.group.state == "PreparingRebalance"
    core.send(a_join("m1", instance="i1", protocols=wishing(2), protocol_type=PROTOCOL_TYPE))
    end_join_phase(core)

    assert (share(core, "back").permit, share(core, "m1").permit) == (0, 1)
    assert share(core, "back").token == fencing_token(2)


def test_a_restart_keeps_permits_and_tokens() -> None:
    core = a_group_with_permits(permits=1, members=2)
    core.restart()

    assert (share(core, "m0").token, share(core, "m1").place) == (fencing_token(1), 1)


def test_after_a_setback_every_token_is_above_all_before() -> None:
    core = a_group_with_permits(permits=1, members=2)
    raise_floor(core)

    again(core, "m0", "m1")

    assert share(core, "m0").permit == 0
    assert share(core, "m0").token > fencing_token(FLOOR)


def test_the_journal_says_to_which_member_a_permit_went() -> None:
    core = a_group_with_permits()
    core.ask(a_leave("m0"))
    again(core, "m1")

    assert core.last("assignment_synced").reason == (
        "the server assigned generation 2 by server:permits: permit 0 to m1; 1 of 1 permits held, 0 waiting"
    )


def test_members_of_an_election_are_no_holders_of_permits() -> None:
    core = a_group_with_permits()

    answer = core.ask(a_join(new="x", protocols=(("single", b""),), protocol_type="leader"))

    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "(permits and locks)" in answer.detail
