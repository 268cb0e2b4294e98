"""Calls of operators and other non-members: groups, their offsets, and the topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

from rota.client.calls import Caller, retry_delay
from rota.client.errors import (
    CoordinatorUnreachable,
    NotFound,
    RevisionOutOfRange,
    Unavailable,
    error_for,
    typed_errors,
)
from rota.client.options import DAY, DRAIN_GRANT_S, check_seconds, to_ms
from rota.client.stats import ClientStats
from rota.client.transports.port import GroupEvent, Transport
from rota.core.types import TopicFacts
from rota.core.types.plan import Hypothesis, PlannedRebalance, plan_rebalance
from rota.protocol.defaults import TOPICS_WAIT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    NO_GENERATION,
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteGroupReply,
    DeleteOffsets,
    DeleteOffsetsReply,
    DeleteTopic,
    DescribeGroup,
    DescribeReply,
    DrainMember,
    DrainReply,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    FreezeGroup,
    FreezeReply,
    GetTopic,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    ListedGroup,
    ListedTopic,
    ListGroups,
    ListReply,
    ListTopics,
    ListTopicsReply,
    OffsetToCommit,
    PartitionResult,
    PutTopic,
    QuarantineGroup,
    QuarantineReply,
    RebalanceGroup,
    RebalanceReply,
    TopicPartitions,
    TopicReply,
)

_WATCH_PAUSE_S = 0.5


class Administration:
    """The groups, offsets and topics of one namespace."""

    namespace: str
    stats: ClientStats
    _transport: Transport
    _caller: Caller

    # --- groups -------------------------------------------------------------------------------

    async def list_groups(
        self, *, states: Sequence[str] = (), protocol_types: Sequence[str] = (), topic: str = ""
    ) -> list[ListedGroup]:
        """List all groups of the namespace, or those in these states and of these protocol types.

        With `topic`, list only groups with a member that subscribes to it, by name or by a pattern.
        """
        groups: list[ListedGroup] = []
        after: str | None = ""
        while after is not None:
            request = ListGroups(self.namespace, tuple(states), (), tuple(protocol_types), after, topic=topic)
            page = await self._caller.ask(request, ListReply)
            groups += page.groups
            after = page.next_after
        return groups

    async def describe_group(self, group_id: str) -> DescribeReply:
        """Describe a group's current state; raise `NotFound` if there is no such group."""
        return await self._caller.ask(DescribeGroup(self.namespace, group_id), DescribeReply)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, with its offsets; raise `InvalidRequest` if it has members."""
        await self._caller.ask(DeleteGroup(self.namespace, group_id), DeleteGroupReply)

    async def rebalance_group(self, group_id: str, reason: str = "", *, step_down: bool = False) -> None:
        """Start a rebalance, for administrators. With `step_down` another member leads, if one joins."""
        await self._caller.ask(RebalanceGroup(self.namespace, group_id, reason, step_down), RebalanceReply)

    async def freeze_group(self, group_id: str, duration: float, reason: str = "") -> float | None:
        """Delay rebalances for `duration` seconds: new members, changes of topics and candidates of a higher priority
        wait; members that leave or expire do not. For administrators; 0 ends a freeze.

        Returns the end in seconds since 1970, by the coordinator's clock; None if the group is not frozen.
        """
        check_seconds("duration", duration, 7 * DAY)
        reply = await self._caller.ask(FreezeGroup(self.namespace, group_id, to_ms(duration), reason), FreezeReply)
        return None if reply.frozen_until_ms is None else reply.frozen_until_ms / 1000

    async def quarantine_group(
        self,
        group_id: str,
        *,
        after_falls: int | None = None,
        max_units: int | None = None,
        release_after: float | None = None,
        release: Sequence[str] = (),
        reason: str = "",
    ) -> QuarantineReply:
        """Set when units whose holders fail are excluded from assignments, and release units. For administrators;
        omitted values are unchanged.

        Args:
            group_id: The group.
            after_falls: The number of consecutive holders that must fail; 0 disables the quarantine.
            max_units: Maximum number of quarantined units.
            release_after: Duration of a quarantine; 0: until the unit is released.
            release: Quarantined units to release, such as `docs/3`.
            reason: The reason, for people and the journal.
        """
        request = QuarantineGroup(
            self.namespace, group_id, after_falls, max_units, to_ms(release_after), tuple(release), reason
        )
        return await self._caller.ask(request, QuarantineReply)

    async def drain_member(
        self,
        group_id: str,
        member_id: str = "",
        *,
        group_instance_id: str | None = None,
        max_leaving: int = 1,
        grant_duration: float = DRAIN_GRANT_S,
        reason: str = "",
    ) -> DrainReply:
        """Ask whether this member may leave now: `granted` if fewer than `max_leaving` members have a permission and
        the group is Stable and not frozen; else `why_not`. The member itself leaves later.

        Args:
            group_id: The group.
            member_id: The member that will leave.
            group_instance_id: Identifies a static member, instead of `member_id`.
            max_leaving: Maximum number of members that leave at once, this one included.
            grant_duration: Duration of the permission, unless the member leaves earlier.
            reason: The reason, for people and the journal.
        """
        granted_ms = to_ms(grant_duration)
        request = DrainMember(self.namespace, group_id, member_id, group_instance_id, max_leaving, granted_ms, reason)
        return await self._caller.ask(request, DrainReply)

    async def plan_group(
        self,
        group_id: str,
        *,
        without: Sequence[str] = (),
        more_members: int = 0,
        partitions: Mapping[str, int] | None = None,
        strategy: str = "",
    ) -> PlannedRebalance:
        """Simulate a rebalance of a `consumer` group under a hypothesis. The group does not change.

        The reply has each member before and after, the partitions that move, and those on which members pause.

        Args:
            group_id: A group that is Stable.
            without: Members that leave, given by member id or instance id.
            more_members: Number of members that join, with the most common subscription.
            partitions: Changed partition counts, by topic.
            strategy: A strategy to use instead of the group's.

        Raises:
            InvalidRequest: The hypothesis does not fit the group; the detail names the field.
            RebalanceInProgress: The group is not Stable.
        """
        group = await self.describe_group(group_id)
        topics = {each.topic: TopicFacts(each.partitions, dict(each.attributes)) for each in await self.topics()}
        hypothesis = Hypothesis(tuple(without), more_members, partitions or {}, strategy)
        with typed_errors():
            return await asyncio.to_thread(plan_rebalance, group, topics, hypothesis)

    async def remove_member(self, group_id: str, member_id: str, reason: str = "") -> None:
        """Remove a member from its group, for administrators; raise `MembershipLost` if there is no such member."""
        leaving = (LeavingMember(member_id, None, reason),)
        reply = await self._caller.ask(LeaveGroup(self.namespace, group_id, leaving, by_admin=True), LeaveReply)
        for left in reply.members:
            if left.error is not ErrorCode.NONE:
                raise error_for(left.error, member_id)

    async def offsets(self, group_id: str) -> tuple[FetchedOffset, ...]:
        """Return all committed offsets of a group."""
        return (await self._caller.ask(FetchOffsets(self.namespace, group_id), FetchReply)).offsets

    async def set_offsets(self, group_id: str, offsets: Sequence[OffsetToCommit]) -> None:
        """Set the offsets at which a group continues, for administrators. The group must have no members; it is created
        if needed.

        Raises:
            MembershipLost: The group has members: only they commit.
            InvalidRequest: The metadata of the partitions in the detail is too long; all other offsets were committed.
        """
        request = CommitOffsets(self.namespace, group_id, NO_GENERATION, tuple(offsets))
        _check_partitions((await self._caller.ask(request, CommitReply)).partitions)

    async def delete_offsets(self, group_id: str, partitions: Mapping[str, Sequence[int]]) -> None:
        """Delete a group's committed offsets for these partitions, by topic, also for partitions without one."""
        selected = tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in partitions.items())
        request = DeleteOffsets(self.namespace, group_id, selected)
        _check_partitions((await self._caller.ask(request, DeleteOffsetsReply)).partitions)

    async def watch(
        self, group_id: str, after_revision: int | Literal["earliest"] | None = None
    ) -> AsyncIterator[GroupEvent]:
        """Yield a group's journal without end: events after `after_revision` (None: from now on), then live events.

        `"earliest"` starts with the first remaining event; 0 requires the whole journal. While the coordinator is
        unavailable this waits, and misses no event after `after_revision`, or after the last event.

        Raises:
            RevisionOutOfRange: The next events are pruned, or the store has lost the event to continue after.
        """
        skips_pruned = after_revision == "earliest"
        after = 0 if after_revision == "earliest" else after_revision
        lasting = 0
        while True:
            self._caller.check()
            try:
                async for event in self._transport.watch(self.namespace, group_id, after):
                    after, lasting, skips_pruned = event.revision, 0, False
                    yield event
            except RevisionOutOfRange as pruned:
                if not skips_pruned:
                    raise
                after = pruned.first_revision - 1
            except Unavailable as error:
                lasting = await self._pause_watch(error, lasting)

    async def _pause_watch(self, error: Unavailable, lasting: int) -> int:
        """Pause an interrupted watch; raise the second consecutive error of a lasting kind.

        `lasting` counts these errors; return the new count.
        """
        lasting += isinstance(error, CoordinatorUnreachable) and error.is_lasting
        if lasting > 1:
            raise error
        await asyncio.sleep(max(_WATCH_PAUSE_S, retry_delay(error.code, error.retry_after)))
        return lasting

    # --- topics -------------------------------------------------------------------------------

    async def topics(self) -> list[ListedTopic]:
        """Return all registered topics with their partition counts."""
        topics: list[ListedTopic] = []
        after: str | None = ""
        while after is not None:
            page = await self._caller.ask(ListTopics(self.namespace, after), ListTopicsReply)
            topics += page.topics
            after = page.next_after
        return topics

    async def topic(self, topic: str) -> TopicReply:
        """Return one registered topic; raise `NotFound` if it is not registered."""
        return await self._caller.ask(GetTopic(self.namespace, topic), TopicReply)

    async def watch_topic(self, topic: str) -> AsyncIterator[TopicReply | None]:
        """Yield a topic's current state, and each later change, without end; None while it is not registered.

        Of several changes at once, only the last is reported. While the coordinator is unavailable this waits.
        """
        version: str | None = None
        lasting = 0
        while True:
            wait_ms = 0 if version is None else TOPICS_WAIT_MS
            try:
                found = await self._caller.ask(GetTopic(self.namespace, topic, version or "", wait_ms), TopicReply)
                lasting = 0
            except NotFound:
                found = None
            except Unavailable as error:
                lasting = await self._pause_watch(error, lasting)
                continue
            if version is None or (found.version if found else "") != version:
                version = found.version if found else ""
                yield found

    async def put_topic(self, topic: str, partitions: int, attributes: Mapping[str, str] | None = None) -> TopicReply:
        """Register a topic, or add partitions; raise `InvalidRequest` if it would shrink. Attributes replace the former
        ones.

        Strategies read two of them: `weights` (`"3,1,1"`: of partition 0, 1, …) and `racks` (`"r1,r1+r2,r2"`: the
        location of each one's data).
        """
        request = PutTopic(self.namespace, topic, partitions, dict(attributes or {}))
        return await self._caller.ask(request, TopicReply)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with the progress of all groups in it; raise `NotFound` if it is not registered.

        A new topic of this name starts without progress.
        """
        await self._caller.ask(DeleteTopic(self.namespace, topic), TopicReply)


def _check_partitions(results: Sequence[PartitionResult]) -> None:
    """Raise the first error of a call that is answered for each partition, and name all rejected partitions."""
    refused = [result for result in results if result.error is not ErrorCode.NONE]
    if refused:
        names = ", ".join(f"{result.topic}/{result.partition}" for result in refused)
        raise error_for(refused[0].error, names)
