"""The troubles of a group, as its owner judges them, each with the command to type next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from rota.core.group.describe import LEAST_INTERVAL_MS, STUCK_MS, judge, unowned_partitions
from rota.core.group.state import Member
from rota.protocol import messages as m
from rota.protocol.troubles import LATELY_MS
from tests.unit.group.driver import (
    GROUP_ID,
    NAMESPACE,
    SESSION_MS,
    Core,
    a_group_awaiting_its_assignment,
    a_group_in_a_join_phase,
    a_group_in_its_initial_delay,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_group,
    an_empty_shard,
    everybody_again,
)
from tests.unit.group.served import a_served_group, candidates, finish

MINUTE_MS = 60_000
LIST = m.ListGroups(NAMESPACE)


def troubles(core: Core) -> dict[str, m.Trouble]:
    """By kind, as a list and a description say them."""
    (listed,) = core.ask(LIST).groups
    assert listed.troubles == core.ask(m.DescribeGroup(NAMESPACE, GROUP_ID)).troubles
    return {each.kind: each for each in listed.troubles}


@pytest.mark.parametrize("core", [a_stable_group(), a_group_in_its_initial_delay(), an_empty_group(), candidates()])
def test_a_group_that_works_or_was_left_has_no_trouble(core: Core) -> None:
    assert troubles(core) == {}


def test_a_join_phase_that_waits_for_a_living_member_is_stuck() -> None:
    core = a_group_in_a_join_phase(members=2)
    core.advance(STUCK_MS - 5_000)
    core.ask(a_heartbeat("m0", 1))
    assert troubles(core) == {}

    core.advance(5_001)

    stuck = troubles(core)["stuck"]
    assert stuck.text.startswith(
        "It has rebalanced for 10 s and waits for m0 (last heartbeat 5.0 s ago) to join again."
    )
    assert stuck.next_step == f"rota groups remove-member {GROUP_ID} m0"


def test_a_leader_that_does_not_assign_is_the_one_to_remove() -> None:
    core = a_group_awaiting_its_assignment(members=2)
    core.send(a_sync("m1", 1))
    core.advance(SESSION_MS - 1_000)

    stuck = troubles(core)["stuck"]

    assert "waits for m0 (last heartbeat 9.0 s ago) to assign." in stuck.text
    assert stuck.next_step.endswith(" m0")


def test_silence_counts_against_the_heartbeats_and_not_the_session() -> None:
    core = an_empty_shard()
    core.ask(a_join(new="m0", session_ms=30 * MINUTE_MS))
    core.send(a_join("m0", session_ms=30 * MINUTE_MS))
    core.let_the_join_phase_end()
    core.ask(a_sync("m0", 1, m0=b"all"))
    for _ in range(3):
        core.advance(5_000)
        core.ask(a_heartbeat("m0", 1))
    core.advance(10_000)
    assert troubles(core) == {}

    core.advance(1)

    silent = troubles(core)["silent"]

    assert silent.text.startswith("m0, which leads, sent no heartbeat for 10 s; it expires in 29 min 50 s,")
    assert silent.next_step == f"rota groups remove-member {GROUP_ID} m0"


def test_a_member_that_called_twice_in_a_moment_is_not_silent_at_once() -> None:
    core = a_stable_group(members=1)
    core.advance(1)
    core.ask(a_heartbeat("m0", 1))

    core.advance(2 * LEAST_INTERVAL_MS)

    assert troubles(core) == {}


def test_an_election_has_no_leader_once_the_last_candidate_expired() -> None:
    core = candidates(members=1)
    core.advance(SESSION_MS)
    core.advance(MINUTE_MS)

    (leaderless,) = troubles(core).values()

    assert leaderless.kind == "leaderless"
    assert leaderless.text.startswith("It has had no member for 1 min: member m0 expired: no heartbeat")
    assert leaderless.next_step == f"rota groups history {GROUP_ID}"


def test_a_client_that_fails_again_and_again_is_counted_by_its_name_and_host() -> None:
    core = a_stable_group(members=1)
    for number in range(3):
        core.ask(structs.replace(a_join(new=f"oom-{number}"), client_id="oom-pod-7", host="10.0.0.9"))
        core.send(structs.replace(a_join(f"oom-{number}"), client_id="oom-pod-7", host="10.0.0.9"))
        everybody_again(core)
        core.ask(a_leave(f"oom-{number}"))
        everybody_again(core)
        core.ask(a_sync("m0", core.generation_id))
    for _ in range(6):
        core.ask(m.RebalanceGroup(NAMESPACE, GROUP_ID))
        everybody_again(core)
        core.ask(a_sync("m0", core.generation_id))

    flapping = troubles(core)["flapping"]

    assert flapping.text.startswith("It changed 13 times within 10 min: ")
    assert flapping.text.endswith("Clients that left or expired most: oom-pod-7 at 10.0.0.9 (3 times).")
    core.advance(1)
    assert not judge(core.group, core.now_ms + LATELY_MS)[1:]


def test_partitions_of_registered_topics_that_no_member_owns_are_found() -> None:
    core = a_served_group(members=1)
    finish(core)
    (member,) = core.group.members.values()
    subscribed = replace(member.image, protocols=(m.Protocol("server:sticky", b'{"topics": ["audit-*"]}'),))
    other = Member(subscribed, position=1)
    other.assignment = b'{"topics": {"audit-1": [0]}}'

    unowned = unowned_partitions(core.group, [member, other], {"documents": 6, "audit-1": 2, "elsewhere": 9})

    assert unowned == (3, ("audit-1/1", "documents/4", "documents/5"))


def test_millions_of_partitions_without_an_owner_are_counted_and_few_are_named() -> None:
    core = a_served_group(members=1)
    finish(core)
    (member,) = core.group.members.values()
    member.assignment = b'{"topics": {"documents": [0, 3, 7000000]}}'

    number, first = unowned_partitions(core.group, [member], {"documents": 1_000_000})

    assert (number, first) == (999_998, ("documents/1", "documents/2", "documents/4", "documents/5"))


def test_an_assignment_that_leaves_partitions_out_is_a_trouble_of_its_generation() -> None:
    core = a_served_group()
    finish(core)

    core.group.unowned = core.generation_id, 2, ("documents/4", "documents/5")

    unowned = troubles(core)["unowned"]
    assert unowned.text.startswith("2 partitions of registered topics without an owner: documents/4 and documents/5.")
    assert (unowned.number, unowned.next_step) == (2, f"rota groups rebalance {GROUP_ID}")
    core.ask(a_leave("m1"))
    assert "unowned" not in troubles(core)
