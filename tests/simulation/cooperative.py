"""A simulated member of a cooperative group (KIP-429): it holds on while it joins, and gives up only what moves."""

from __future__ import annotations

from functools import cached_property

from rota.client.consumer_protocol import PROTOCOL_TYPE, TopicRole
from rota.core.assignors import MemberSubscription, TopicPartition, assign
from rota.core.membership import Assigned, Event, Lost, RebalanceStarted, State
from rota.core.types.consumer import decode_subscription
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DescribeGroup, DescribeReply, JoinedMember, Protocol, Reply
from rota.protocol.texts import TOPICS_CHANGED
from tests.simulation.member import TOPIC, Member, Share, decode_share, encode_share

STRATEGY = "cooperative-sticky"


class CooperativeMember(Member):
    """Its metadata and shares are made by the SDK's own code; the world draws the times of its actions."""

    protocol_type = PROTOCOL_TYPE
    _giving_up: Share | None = None
    """Its share when it began to stop a part of its work; until that is done it does not join."""

    @cached_property
    def _role(self) -> TopicRole:
        return TopicRole((STRATEGY,), (TOPIC,), {})

    def _protocols(self, version: int) -> tuple[Protocol, ...]:
        self._role.rack_id = f"v{version}"
        if self._held is None:
            return self._role.protocols(None, -1)
        held = tuple(TopicPartition(TOPIC, number) for number in self._held.partitions)
        return self._role.protocols(held, self._held.generation_id)

    def _handle(self, events: list[Event]) -> None:
        super()._handle(events)
        if any(isinstance(event, Lost) for event in events):
            self.core.say(self._protocols(self._metadata_version))

    def resync(self) -> bool:
        """The topic has grown. The others may still be giving something up, so the leader has all join again."""
        if self.core.state is not State.STABLE or not self.core.is_leader:
            return False
        self.world.grow(self.group)
        self._handle(self.core.request_rejoin(self.now_ms(), TOPICS_CHANGED))
        self._plan()
        return True

    def _assign(self, generation_id: int, members: tuple[JoinedMember, ...]) -> None:
        if self.core.state is not State.LEADING or self.core.generation_id != generation_id:
            return
        shares = assign(STRATEGY, {TOPIC: self.world.partitions[self.group]}, [_subscription(each) for each in members])
        numbers = {member_id: tuple(number for _, number in share) for member_id, share in shares.items()}
        self.core.assign(generation_id, {member_id: encode_share(share) for member_id, share in numbers.items()})
        self._plan()

    # --- giving up and joining again -------------------------------------------------------------

    def _take_up(self, event: Assigned) -> None:
        """Kept work is not interrupted; it holds revoked partitions until its work there has stopped."""
        given = decode_share(event.assignment)
        former = self.holds
        removed = tuple(number for number in former if number not in given)
        if any(number in given for number in former):
            self.world.sometimes("partitions kept through a rebalance")
        self._hold(event.generation_id, given + removed)
        self._giving_up = None
        if event.is_leader:
            self._after(self.core.settings.session_timeout_ms, self._look_for_rest, event.generation_id)
        if removed:
            self._giving_up = self._held
            self.world.scheduler.after(self._revoke_ms(), self, self._gave_up, self._held, given)

    def _gave_up(self, held: Share, given: tuple[int, ...]) -> None:
        if self._held is not held:
            return
        self.world.sometimes("partitions given up before they are granted")
        self._giving_up = None
        self._hold(held.generation_id, given)
        self._handle(self.core.request_rejoin(self.now_ms(), "gave up what was revoked"))
        self._join_again()
        self._plan()

    def _look_for_rest(self, generation_id: int) -> None:
        """Partitions that a member claimed and was to revoke have no holder if that member restarted instead."""

        def described(reply: Reply | None) -> None:
            if not isinstance(reply, DescribeReply) or reply.error is not ErrorCode.NONE:
                self._after(1_000, self._look_for_rest, generation_id)
            elif reply.generation_id == generation_id and not self._is_all_given(reply):
                self.world.sometimes("leader calls for unassigned partitions")
                self._handle(self.core.request_rejoin(self.now_ms(), "nobody was given all"))
                self._plan()

        if self.core.state is State.STABLE and self.core.generation_id == generation_id:
            self.world.network.call(self, DescribeGroup(*self.group), 500, described)

    def _is_all_given(self, reply: DescribeReply) -> bool:
        given = {number for member in reply.members for number in decode_share(member.assignment)}
        return len(given) == self.world.partitions[self.group]

    def _prepare(self, event: RebalanceStarted) -> None:
        self.world.scheduler.after(int(self.world.rng.random() * 20), self, self._join_again)

    def _join_again(self) -> None:
        if self.core.state is State.REVOKING and (self._giving_up is None or self._giving_up is not self._held):
            protocols = self._protocols(self._metadata_version)
            events = self.core.rejoin(self.now_ms(), protocols, holding=True)
            if any(isinstance(event, Assigned) for event in events):
                self.world.sometimes("taken along by an election, and led into it without a join")
            self._handle(events)
            self._plan()


def _subscription(member: JoinedMember) -> MemberSubscription:
    return decode_subscription(member.metadata).of_member(member.member_id, member.group_instance_id)
