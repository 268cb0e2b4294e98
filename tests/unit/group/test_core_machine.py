"""Random commands against the core, nasty ones too: other members' ids, stale generations, calls that hang up.

The driver checks the invariants, the journal, the rows and the answers after every step; an exception is a bug.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from rota.group.state import Group
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from tests.unit.group.driver import KEY, NAMESPACE, Core

EXAMPLES = int(os.environ.get("ROTA_MACHINE_EXAMPLES", "100"))
TINY = Limits(
    min_session_timeout_ms=100,
    max_session_timeout_ms=5_000,
    initial_rebalance_delay_ms=200,
    group_max_size=4,
    offsets_retention_ms=2_000,
    empty_group_retention_ms=1_000,
    offset_metadata_max_chars=3,
)
PROTOCOLS = (
    (("a", b""), ("b", b"")),
    (("b", b""), ("a", b"")),
    (("a", b"x"),),
    (("b", b"y"), ("a", b"")),
    (("c", b""),),
    (("a", b""), ("a", b"x")),
    (),
)
Choice = TypeVar("Choice")


class Dice:
    """All choices of one step in one number: many draws a step would make Hypothesis the slow part.

    The smallest number is the first choice everywhere, so that failures shrink to the plainest commands.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self._number = number

    def __repr__(self) -> str:
        return f"Dice({self._number})"

    def below(self, bound: int) -> int:
        self._left, drawn = divmod(self._left, bound)
        return drawn

    def pick(self, *choices: Choice) -> Choice:
        return choices[self.below(len(choices))]

    def one_of(self, choices: Sequence[Choice]) -> Choice:
        return choices[self.below(len(choices))]

    def rarely(self) -> bool:
        return self.below(8) == 7


DICE = st.integers(0, 2**48 - 1).map(Dice)


class CoreMachine(RuleBasedStateMachine):
    """One shard, one group, a handful of members."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(TINY)
        self.drawn = 0

    @property
    def group(self) -> Group | None:
        return self.core.shard.groups.get(KEY)

    def generation(self, dice: Dice) -> int:
        current = self.group.generation_id if self.group is not None else 0
        return current + dice.pick(0, 0, 0, 0, 0, -1, 1, -2)

    def somebody(self, dice: Dice) -> str:
        """Mostly a member or one about to join, rarely a stranger."""
        known = [*self.group.members, *self.group.pending] if self.group is not None else []
        if not known or dice.rarely():
            return dice.pick("stranger", "", "n1")
        return dice.one_of(known)

    def instance_of(self, member_id: str, dice: Dice) -> str | None:
        """Mostly its own, rarely none or another's."""
        if dice.rarely():
            return dice.pick(None, "i0", "i1")
        member = self.group.members.get(member_id) if self.group is not None else None
        return member.image.group_instance_id if member is not None else None

    @rule(dice=DICE)
    def newcomer_joins(self, dice: Dice) -> None:
        self.join("", dice.pick(None, None, "i0", "i1"), dice)

    @rule(dice=DICE)
    def somebody_joins(self, dice: Dice) -> None:
        member_id = self.somebody(dice)
        self.join(member_id, self.instance_of(member_id, dice), dice)

    def join(self, member_id: str, instance: str | None, dice: Dice) -> None:
        self.drawn += 1
        protocol_type = "worker" if not dice.rarely() else dice.pick("consumer", "")
        offered = tuple(m.Protocol(name, metadata) for name, metadata in dice.one_of(PROTOCOLS))
        session_ms, rebalance_ms = dice.pick(400, 100, 1_000, 50), dice.pick(300, 0, 1_500)
        new_id = f"n{self.drawn}"
        self.core.send(
            m.JoinGroup(
                *KEY, protocol_type, offered, session_ms, rebalance_ms, member_id, instance, new_member_id=new_id
            )
        )

    @rule(dice=DICE)
    def member_rejoins_as_it_is(self, dice: Dice) -> None:
        if self.group is not None and self.group.members:
            image = dice.one_of(list(self.group.members.values())).image
            times = (image.session_timeout_ms, image.rebalance_timeout_ms)
            protocol_type = self.group.protocol_type or ""
            who = (image.member_id, image.group_instance_id)
            self.core.send(m.JoinGroup(*KEY, protocol_type, image.protocols, *times, *who))

    @rule(dice=DICE)
    def somebody_syncs(self, dice: Dice) -> None:
        member_id, generation_id = self.somebody(dice), self.generation(dice)
        instance, name = self.instance_of(member_id, dice), dice.pick(None, None, "a", "b")
        error = "no" if dice.rarely() else None
        shares = {self.somebody(dice): dice.pick(b"1", b"", b"2") for _ in range(dice.below(4))}
        assign = tuple(shares.items())
        self.core.send(m.SyncGroup(*KEY, member_id, generation_id, instance, None, name, assign, error))

    @rule(dice=DICE)
    def leader_assigns(self, dice: Dice) -> None:
        if self.group is not None and self.group.leader_id is not None:
            shares = tuple((member_id, dice.pick(b"1", b"2", b"")) for member_id in self.group.members)
            self.core.send(m.SyncGroup(*KEY, self.group.leader_id, self.group.generation_id, assignments=shares))

    @rule(dice=DICE)
    def somebody_heartbeats(self, dice: Dice) -> None:
        member_id, generation_id = self.somebody(dice), self.generation(dice)
        wait_ms = dice.pick(500, 0)
        self.core.send(m.Heartbeat(*KEY, member_id, generation_id, self.instance_of(member_id, dice), wait_ms))

    @rule(dice=DICE)
    def several_heartbeat_at_once(self, dice: Dice) -> None:
        beats = [self.somebody(dice) for _ in range(dice.below(4))]
        reported = tuple(m.MemberHeartbeat(beat, self.generation(dice), self.instance_of(beat, dice)) for beat in beats)
        self.core.ask(m.HeartbeatMany(*KEY, reported))

    @rule(dice=DICE)
    def somebody_leaves(self, dice: Dice) -> None:
        leaving = []
        for _ in range(1 + dice.below(2)):
            member_id = self.somebody(dice)
            leaving.append(m.LeavingMember(member_id, self.instance_of(member_id, dice), "because"))
        silent_for_ms, by_admin = dice.pick(None, None, 0, 300), dice.pick(False, True)
        self.core.ask(m.LeaveGroup(*KEY, tuple(leaving), by_admin=by_admin, silent_for_ms=silent_for_ms))

    @rule(dice=DICE)
    def somebody_commits(self, dice: Dice) -> None:
        topic, offset, text = dice.pick("t", "u"), dice.below(50), dice.pick("", "much")
        items = (m.OffsetToCommit(topic, 0, offset), m.OffsetToCommit(topic, 1, offset, metadata=text))
        if dice.rarely():
            self.core.ask(m.CommitOffsets(*KEY, -1, items))
            return
        member_id, generation_id = self.somebody(dice), self.generation(dice)
        fence = self.core.ask(m.VerifyFence(*KEY, generation_id, member_id))
        request = m.CommitOffsets(*KEY, generation_id, items, member_id, self.instance_of(member_id, dice))
        is_accepted = self.core.ask(request).error is ErrorCode.NONE
        assert not is_accepted or generation_id < 0 or fence.is_member, f"S9: {request} was accepted"

    @rule(dice=DICE)
    def offsets_are_deleted(self, dice: Dice) -> None:
        self.core.ask(m.DeleteOffsets(*KEY, (m.TopicPartitions(dice.pick("t", "u"), (0, 5)),)))

    @rule(dice=DICE)
    def somebody_reads(self, dice: Dice) -> None:
        member_id = self.somebody(dice)
        described = self.core.ask(m.DescribeGroup(*KEY))
        fence = self.core.ask(m.VerifyFence(*KEY, self.generation(dice), member_id))
        for question in (m.GetLeader(*KEY), m.ListGroups(NAMESPACE), m.FetchOffsets(*KEY)):
            self.core.ask(question)
        assert described.state == (self.group.state.value if self.group is not None else "Dead")
        assert fence.is_member <= (self.group is not None and member_id in self.group.members)

    @rule(dice=DICE)
    def a_wait_is_over(self, dice: Dice) -> None:
        parked = list(self.core.unanswered)
        if parked:
            self.core.wait_is_over(dice.one_of(parked))

    @rule(dice=DICE)
    def a_client_hangs_up(self, dice: Dice) -> None:
        parked = list(self.core.unanswered)
        if parked:
            self.core.hang_up(dice.one_of(parked))

    @rule(dice=DICE)
    def time_passes(self, dice: Dice) -> None:
        self.core.advance(dice.pick(50, 0, 1, 100, 200, 400, 1_500))

    @rule(dice=DICE)
    def an_administrator_tidies_up(self, dice: Dice) -> None:
        if dice.below(2):
            self.core.sweep()
        else:
            self.core.ask(m.DeleteGroup(*KEY))

    @rule(dice=DICE)
    def topics_change(self, dice: Dice) -> None:
        topic, partitions = dice.pick("t", "u"), dice.below(6)
        change = m.PutTopic(NAMESPACE, topic, partitions - 1) if partitions else m.DeleteTopic(NAMESPACE, topic)
        self.core.ask(change)
        self.core.ask(m.GetTopic(NAMESPACE, topic))
        self.core.ask(m.ListTopics(NAMESPACE))

    @rule()
    def another_owner_loads_the_shard(self) -> None:
        self.core.restart()

    def teardown(self) -> None:
        """Silence ends every state: all members without parked calls expire."""
        for call in list(self.core.unanswered):
            self.core.hang_up(call)
        self.core.advance(20_000)
        assert self.group is None or not self.group.members, "members outlive their sessions"


def test_random_commands_never_break_the_core() -> None:
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=100,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
