"""Maps members to session streams, and pushes rebalance events to them.

One listener per group serves all streams. A member is bound to one stream, the last that named it. So a lost stream
takes along only those that have not shown up on another one since.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rota.api.grpc.elections import Elected, elected_in
from rota.api.grpc.ports import StreamedCoordinator
from rota.api.grpc.turns import Turns
from rota.protocol.causes import MEMBER_ENDS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import HeartbeatError, HeartbeatMany, LeaveGroup, LeavingMember
from rota.replica.ports import Answer, JournalEvent
from rota.v1.coordinator_pb2 import Fenced, Generation, MemberAssignment, Rebalance, SessionEvent

GroupKey = tuple[str, str]
RETRY_LEAVE_S = (0.1, 0.5, 2.0)
BYTES_OF_A_LEAVE = 512
"""What the leave of a stream's members from one group counts as in `Turns`: it costs as much as some joins."""

_log = logging.getLogger(__name__)


class Stream(Protocol):
    """Where news goes. After the stream is lost, it goes nowhere."""

    @property
    def takes_elections(self) -> bool:
        """Whether its client has requested news of elections with the shares."""

    def push(self, news: SessionEvent) -> None: ...


@dataclass(slots=True, eq=False)
class StreamMember:
    """A member on a stream. While it joins there it gets no push to join, nor of its own sync's result."""

    stream: Stream
    member_id: str
    group_instance_id: str | None
    joins: int = 0
    syncs: int = 0


@dataclass(slots=True)
class _Table:
    """The members of one group that are bound to streams, by member id, and how to stop listening to it."""

    stop_listening: Callable[[], None]
    bound_members: dict[str, StreamMember] = field(default_factory=dict)
    by_stream: dict[Stream, dict[str, StreamMember]] = field(default_factory=dict)
    """The same members. A stream that ends finds its own without a look at all others'."""
    settled: dict[Stream, HeartbeatMany] = field(default_factory=dict)
    """Heartbeats of which each member is bound to the stream that they came by, until any member is bound or removed.
    """

    def bind(self, bound_member: StreamMember) -> None:
        """Put a member on its stream; it leaves the one that it was on before."""
        member_id = bound_member.member_id
        if member_id in self.bound_members:
            self.unbind(member_id)
        self.bound_members[member_id] = bound_member
        self.by_stream.setdefault(bound_member.stream, {})[member_id] = bound_member
        self.settled.clear()

    def unbind(self, member_id: str) -> StreamMember:
        """Take a member off its stream."""
        bound_member = self.bound_members.pop(member_id)
        of_stream = self.by_stream[bound_member.stream]
        del of_stream[member_id]
        if not of_stream:
            del self.by_stream[bound_member.stream]
        self.settled.clear()
        return bound_member


@dataclass(frozen=True, slots=True)
class _Departure:
    """Members whose stream was lost at that time of the event loop, and that are on no other one."""

    key: GroupKey
    bound_members: Sequence[StreamMember]
    lost_s: float
    leave_after_ms: int

    def request(self) -> LeaveGroup:
        """Only the coordinator knows whether they sent heartbeats elsewhere since the loss, so it decides."""
        # Not the grace: this loop may be late, and early heartbeats in it would count for nothing.
        silent_ms = int((_now_s() - self.lost_s) * 1000)
        reason = f"its stream was lost {self.leave_after_ms} ms ago"
        leaving = (LeavingMember(m.member_id, m.group_instance_id, reason, silent_ms) for m in self.bound_members)
        return LeaveGroup(*self.key, tuple(leaving))


class Roster:
    """All members on the streams of a server."""

    def __init__(self, coordinator: StreamedCoordinator, turns: Turns) -> None:
        """`turns` are those of the streams' messages: members of streams that end at once leave in these, too."""
        self._coordinator = coordinator
        self._turns = turns
        self._tables: dict[GroupKey, _Table] = {}
        self._leaving: set[asyncio.TimerHandle] = set()
        """Of members that leave after their grace, or that could not leave yet."""
        self._has_stopped = False

    def bound_members(self, key: GroupKey) -> Mapping[str, StreamMember]:
        """The members of the group on streams, by member id; not to be kept."""
        table = self._tables.get(key)
        return table.bound_members if table is not None else {}

    def members_of(self, stream: Stream, key: GroupKey) -> list[str]:
        """The ids of the group's members on this stream."""
        table = self._tables.get(key)
        return list(table.by_stream.get(stream, ())) if table is not None else []

    def bound_member(
        self, stream: Stream, key: GroupKey, member_id: str, group_instance_id: str | None
    ) -> StreamMember:
        """Bind the member to this stream; it leaves the one that it was on before."""
        table = self._tables.get(key)
        if table is None:
            stop_listening = self._coordinator.subscribe(*key, lambda lines: self._on_lines(key, lines))
            table = self._tables[key] = _Table(stop_listening)
        bound_member = table.bound_members.get(member_id)
        if bound_member is None or bound_member.stream is not stream:
            bound_member = StreamMember(stream, member_id, group_instance_id)
            table.bind(bound_member)
        return bound_member

    def remove(self, stream: Stream, key: GroupKey, member_ids: Iterable[str]) -> list[StreamMember]:
        """Take members off this stream; returns those that were on it."""
        table = self._tables.get(key)
        if table is None:
            return []
        of_stream = table.by_stream.get(stream, {})
        # A client may name one twice.
        gone = [table.unbind(member_id) for member_id in member_ids if member_id in of_stream]
        if not table.bound_members:
            del self._tables[key]
            table.stop_listening()
        return gone

    def give_back(self, bound_member: StreamMember, key: GroupKey, former: StreamMember | None) -> None:
        """The member turned out to be another caller's: its own stream has it again, this one does not."""
        if former is not None and former.stream is bound_member.stream:
            return
        self.remove(bound_member.stream, key, [bound_member.member_id])
        if former is not None:
            self.bound_member(former.stream, key, former.member_id, former.group_instance_id)

    def on_heartbeat(self, stream: Stream, request: HeartbeatMany, errors: Collection[HeartbeatError]) -> None:
        """Bind all members with a heartbeat to the stream, except those that were removed."""
        key = (request.namespace, request.group_id)
        table = self._tables.get(key)
        if not errors and table is not None and table.settled.get(stream) is request:
            return
        bound_members = self.bound_members(key)
        gone = {each.member_id for each in errors if each.error is not ErrorCode.REBALANCE_IN_PROGRESS}
        if gone:
            self.remove(stream, key, gone)
        for beat in request.members:
            bound_member = bound_members.get(beat.member_id)
            if (bound_member is None or bound_member.stream is not stream) and beat.member_id not in gone:
                self.bound_member(stream, key, beat.member_id, beat.group_instance_id)
        if not errors and (table := self._tables.get(key)) is not None:
            table.settled[stream] = request

    def lose(self, stream: Stream, keys: Iterable[GroupKey], leave_after_ms: int | None) -> None:
        """The stream is gone. Its members leave after a grace, if they had asked for that."""
        for key in keys:
            leave = partial(self._lose_group, stream, key, leave_after_ms, _now_s())
            if leave_after_ms:
                self._later(leave_after_ms / 1000, leave)
            else:
                self._turns.begin(BYTES_OF_A_LEAVE, leave)

    def stop(self) -> None:
        """Forget all members on streams and pending leaves: these members expire, if they do not come back."""
        self._has_stopped = True
        tables, self._tables = self._tables, {}
        for table in tables.values():
            table.stop_listening()
        for timer in self._leaving:
            timer.cancel()
        self._leaving.clear()

    def _lose_group(self, stream: Stream, key: GroupKey, leave_after_ms: int | None, lost_s: float) -> None:
        bound_members = self.remove(stream, key, self.members_of(stream, key))
        if bound_members and leave_after_ms is not None:
            self._depart(_Departure(key, bound_members, lost_s, leave_after_ms), RETRY_LEAVE_S)

    def _depart(self, departure: _Departure, pauses_s: Sequence[float]) -> None:
        """Have these members leave; again after each of the pauses while the coordinator is not available."""

        def answered(answer: Answer) -> None:
            if not _is_for_later(answer.reply.error) or self._has_stopped:
                return
            if pauses_s:
                self._later(pauses_s[0], partial(self._depart, departure, pauses_s[1:]))
                return
            details = {"group_id": departure.key[1], "members": len(departure.bound_members)}
            _log.warning("members of a lost stream could not leave", extra=details)

        self._coordinator.submit(departure.request(), answered)

    def _later(self, seconds: float, leave: Callable[[], None]) -> None:
        def fire() -> None:
            self._leaving.discard(timer)
            self._turns.begin(BYTES_OF_A_LEAVE, leave)

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._leaving.add(timer)

    # --- what groups do ------------------------------------------------------------------------------

    def _on_lines(self, key: GroupKey, lines: Sequence[JournalEvent]) -> None:
        for number, event in enumerate(lines):
            match event.kind:
                case "rebalance_started":
                    self._notify_rebalance(key, event, elected_in(lines[number:]))
                case "assignment_synced":
                    if event.payload["resync"]:
                        self._notify_generation(key, event)
                case "member_fenced":
                    self._notify_fenced(key, event, ErrorCode.FENCED_INSTANCE_ID)
                case kind if kind in MEMBER_ENDS:
                    self._notify_fenced(key, event, ErrorCode.UNKNOWN_MEMBER_ID)

    def _notify_rebalance(self, key: GroupKey, event: JournalEvent, elected: Elected | None) -> None:
        """Where the next generation is there already, its members are led into it, if their clients understand that."""
        for stream, bound_members in self._by_stream(key):
            notified = [bound_member.member_id for bound_member in bound_members if not bound_member.joins]
            if elected is not None and stream.takes_elections:
                taken_along = [member_id for member_id in notified if member_id in elected.member_ids]
                notified = [member_id for member_id in notified if member_id not in elected.member_ids]
                if taken_along:
                    news = elected.news_for(taken_along, _place(key, elected.synced))
                    stream.push(SessionEvent(election=news))
            if notified:
                stream.push(
                    SessionEvent(
                        rebalance=Rebalance(
                            **_place(key, event),
                            generation_id=event.generation_id,
                            member_ids=notified,
                            reason=event.reason,
                            by=event.payload["by"],
                        )
                    )
                )

    def _notify_generation(self, key: GroupKey, event: JournalEvent) -> None:
        """A leader that opened it gets it as its answer; where the server assigns, the leader did not open it."""
        leader_id, shares = event.payload["leader_id"], dict(event.payload["assignments"])
        for stream, bound_members in self._by_stream(key):
            notified = [
                MemberAssignment(
                    member_id=bound_member.member_id, assignment=b64decode(shares.get(bound_member.member_id, ""))
                )
                for bound_member in bound_members
                if not bound_member.joins and not (bound_member.syncs and bound_member.member_id == leader_id)
            ]
            if notified:
                generation = Generation(**_place(key, event), generation_id=event.generation_id, members=notified)
                stream.push(SessionEvent(generation=generation))

    def _notify_fenced(self, key: GroupKey, event: JournalEvent, code: ErrorCode) -> None:
        member_id = event.payload["member_id"]
        bound_member = self.bound_members(key).get(member_id)
        if bound_member is not None:
            self.remove(bound_member.stream, key, [member_id])
            fenced = Fenced(**_place(key, event), member_ids=[member_id], code=code.value, reason=event.reason)
            bound_member.stream.push(SessionEvent(fenced=fenced))

    def _by_stream(self, key: GroupKey) -> Iterable[tuple[Stream, Collection[StreamMember]]]:
        table = self._tables.get(key)
        by_stream = table.by_stream if table is not None else {}
        return ((stream, bound_members.values()) for stream, bound_members in by_stream.items())


def _place(key: GroupKey, event: JournalEvent) -> dict[str, Any]:
    return {"namespace": key[0], "group_id": key[1], "revision": event.seq, "epoch": event.epoch}


def _is_for_later(error: ErrorCode) -> bool:
    return error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
