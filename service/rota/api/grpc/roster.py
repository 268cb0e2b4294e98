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
from rota.replica.forwarding import UNANSWERED
from rota.replica.ports import Answer, JournalEvent
from rota.v1.coordinator_pb2 import Fenced, Generation, MemberAssignment, Rebalance, SessionEvent

GroupKey = tuple[str, str]
OF_MEMBERS = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
"""Errors of heartbeats that only a member gets."""
RETRY_LEAVE_S = (0.1, 0.5, 2.0)
BYTES_OF_A_LEAVE = 512
"""What the leave of a stream's members from one group counts as in `Turns`: it costs as much as some joins."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """How a stream was lost, and what becomes of its members."""

    at_s: float
    """By the event loop's time."""
    leave_after_ms: int | None
    """They leave so long after that; None where they do not leave."""
    in_name_of_caller: Callable[[LeaveGroup], Any]
    """A leave in the name of the stream's caller: it may have named others' members, and be gone before the answer."""


class Stream(Protocol):
    """Where news goes. After the stream is lost, it goes nowhere."""

    loss: Loss | None
    """None until the roster has noted its loss."""

    @property
    def takes_elections(self) -> bool:
        """Whether its client has requested news of elections with the shares."""

    def push(self, news: SessionEvent) -> None: ...

    def note_group(self, key: GroupKey) -> None:
        """The stream has members of this group: it names them when it is lost."""


@dataclass(slots=True, eq=False)
class MemberCalls:
    """Calls of a member that are under way on its stream. While it joins there it gets no push to join, nor of its own
    sync's result, nor of its own end while it leaves.
    """

    joins: int = 0
    syncs: int = 0
    leaves: int = 0


@dataclass(slots=True)
class _Table:
    """The members of one group that are bound to streams, and how to stop listening to it."""

    stop_listening: Callable[[], None]
    streams: dict[str, Stream] = field(default_factory=dict)
    """By member id. A member that is silent takes no more than its places here and below."""
    members: dict[Stream, dict[str, None]] = field(default_factory=dict)
    """The same by stream: one that ends finds its own members without a look at all others."""
    calls: dict[str, MemberCalls] = field(default_factory=dict)
    """By member id, of those with calls under way."""
    settled: dict[Stream, HeartbeatMany] = field(default_factory=dict)
    """Heartbeats of which each member is bound to the stream that they came by, until any member is bound or removed.
    """

    def bind(self, stream: Stream, member_id: str) -> None:
        """Put a member on a stream; it leaves the one that it was on before."""
        if member_id in self.streams:
            self.unbind(member_id)
        self.streams[member_id] = stream
        self.members.setdefault(stream, {})[member_id] = None
        self.settled.clear()

    def unbind(self, member_id: str) -> None:
        """Take a member off its stream."""
        stream = self.streams.pop(member_id)
        on_stream = self.members[stream]
        del on_stream[member_id]
        if not on_stream:
            del self.members[stream]
        self.calls.pop(member_id, None)
        self.settled.clear()


@dataclass(frozen=True, slots=True)
class _Departure:
    """Members whose stream was lost, and that are on no other one."""

    key: GroupKey
    member_ids: Sequence[str]
    loss: Loss

    def request(self) -> Any:
        """Only the coordinator knows whether they sent heartbeats elsewhere since the loss, so it decides."""
        # Not the grace: this loop may be late, and early heartbeats in it would count for nothing.
        silent_ms = int((_now_s() - self.loss.at_s) * 1000)
        reason = f"its stream was lost {self.loss.leave_after_ms} ms ago"
        leaving = (LeavingMember(member_id, None, reason, silent_ms) for member_id in self.member_ids)
        return self.loss.in_name_of_caller(LeaveGroup(*self.key, tuple(leaving)))


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

    def streams(self, key: GroupKey) -> Mapping[str, Stream]:
        """The stream of each member of the group that is on one, by member id; not to be kept."""
        table = self._tables.get(key)
        return table.streams if table is not None else {}

    def members_on(self, stream: Stream, key: GroupKey) -> list[str]:
        """The members of the group on this stream."""
        table = self._tables.get(key)
        return list(table.members.get(stream, ())) if table is not None else []

    def has_members(self, stream: Stream, key: GroupKey) -> bool:
        """Whether any member of the group is on this stream."""
        table = self._tables.get(key)
        return table is not None and stream in table.members

    def bind(self, stream: Stream, key: GroupKey, member_id: str) -> None:
        """Bind the member to this stream; it leaves the one that it was on before."""
        table = self._tables.get(key)
        if table is None:
            stop_listening = self._coordinator.subscribe(*key, lambda lines: self._on_lines(key, lines))
            table = self._tables[key] = _Table(stop_listening)
        if table.streams.get(member_id) is not stream:
            table.bind(stream, member_id)

    def calls_of(self, key: GroupKey, member_id: str) -> MemberCalls:
        """Where calls of a member that is bound are counted, for as long as any of them is under way."""
        return self._tables[key].calls.setdefault(member_id, MemberCalls())

    def end_call(self, key: GroupKey, member_id: str, calls: MemberCalls) -> None:
        """A call that was counted in `calls` is over."""
        table = self._tables.get(key)
        is_idle = not (calls.joins or calls.syncs or calls.leaves)
        if table is not None and is_idle and table.calls.get(member_id) is calls:
            del table.calls[member_id]
            if not table.calls:
                table.calls.clear()  # which frees its table

    def remove(self, stream: Stream, key: GroupKey, member_ids: Iterable[str]) -> list[str]:
        """Take members off this stream; returns those that were on it."""
        table = self._tables.get(key)
        if table is None:
            return []
        of_stream = table.members.get(stream, {})
        # A client may name one twice.
        gone = [member_id for member_id in dict.fromkeys(member_ids) if member_id in of_stream]
        for member_id in gone:
            table.unbind(member_id)
        if not table.streams:
            del self._tables[key]
            table.stop_listening()
        return gone

    def give_back(self, stream: Stream, key: GroupKey, member_id: str, former: Stream | None) -> None:
        """The member turned out to be another caller's: the stream that it was on has it again, this one does not.

        Unless it has moved on, or is no member any more. Where that stream is lost the member leaves as the others did.
        """
        if former is stream or not self.remove(stream, key, [member_id]) or former is None:
            return
        self.bind(former, key, member_id)
        if former.loss is None:
            former.note_group(key)
        else:
            self._lose_group_in_time(former, key, former.loss)

    def on_heartbeat(self, stream: Stream, request: HeartbeatMany, errors: Collection[HeartbeatError]) -> None:
        """Bind all members with a heartbeat to the stream, and unbind those that are none.

        One of which its owner has not said anything stays where it is.
        """
        key = (request.namespace, request.group_id)
        table = self._tables.get(key)
        if not errors and table is not None and table.settled.get(stream) is request:
            return
        streams = self.streams(key)
        unproven = {each.member_id: each.error for each in errors if each.error not in OF_MEMBERS}
        gone = [member_id for member_id, error in unproven.items() if error not in UNANSWERED]
        if gone:
            self.remove(stream, key, gone)
        for beat in request.members:
            if streams.get(beat.member_id) is not stream and beat.member_id not in unproven:
                self.bind(stream, key, beat.member_id)
        if not errors and (table := self._tables.get(key)) is not None:
            table.settled[stream] = request

    def lose(self, stream: Stream, keys: Iterable[GroupKey], loss: Loss) -> None:
        """The stream is gone. Its members leave after a grace, if they had asked for that."""
        stream.loss = loss
        for key in keys:
            self._lose_group_in_time(stream, key, loss)

    def stop(self) -> None:
        """Forget all members on streams and pending leaves: these members expire, if they do not come back."""
        self._has_stopped = True
        tables, self._tables = self._tables, {}
        for table in tables.values():
            table.stop_listening()
        for timer in self._leaving:
            timer.cancel()
        self._leaving.clear()

    def _lose_group_in_time(self, stream: Stream, key: GroupKey, loss: Loss) -> None:
        grace_s = (loss.leave_after_ms or 0) / 1000
        self._after(loss.at_s + grace_s - _now_s(), key, partial(self._lose_group, stream, key, loss))

    def _lose_group(self, stream: Stream, key: GroupKey, loss: Loss) -> None:
        member_ids = self.remove(stream, key, self.members_on(stream, key))
        if member_ids and loss.leave_after_ms is not None:
            self._depart(_Departure(key, member_ids, loss), RETRY_LEAVE_S)

    def _depart(self, departure: _Departure, pauses_s: Sequence[float]) -> None:
        """Have these members leave; again after each of the pauses while the coordinator is not available."""

        def answered(answer: Answer) -> None:
            if answer.reply.error not in UNANSWERED or self._has_stopped:
                return
            if pauses_s:
                self._after(pauses_s[0], departure.key, partial(self._depart, departure, pauses_s[1:]))
                return
            details = {"group_id": departure.key[1], "members": len(departure.member_ids)}
            _log.warning("members of a lost stream could not leave", extra=details)

        self._coordinator.submit(departure.request(), answered)

    def _after(self, seconds: float, key: GroupKey, leave: Callable[[], None]) -> None:
        """Have members leave this group in a turn that comes then, or now. Errors are logged, group by group."""

        def leave_or_log() -> None:
            try:
                leave()
            except Exception:
                _log.exception("members of a lost stream could not leave", extra={"group_id": key[1]})

        def fire() -> None:
            self._leaving.discard(timer)
            self._turns.begin(BYTES_OF_A_LEAVE, leave_or_log)

        if seconds <= 0:
            self._turns.begin(BYTES_OF_A_LEAVE, leave_or_log)
        else:
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
        joining = self._joining(key)
        for stream, member_ids in self._by_stream(key):
            notified = [member_id for member_id in member_ids if member_id not in joining]
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
        informed = self._joining(key)
        if (calls := self._calls(key).get(leader_id)) is not None and calls.syncs:
            informed.add(leader_id)
        for stream, member_ids in self._by_stream(key):
            notified = [
                MemberAssignment(member_id=member_id, assignment=b64decode(shares.get(member_id, "")))
                for member_id in member_ids
                if member_id not in informed
            ]
            if notified:
                generation = Generation(**_place(key, event), generation_id=event.generation_id, members=notified)
                stream.push(SessionEvent(generation=generation))

    def _notify_fenced(self, key: GroupKey, event: JournalEvent, code: ErrorCode) -> None:
        member_id = event.payload["member_id"]
        stream = self.streams(key).get(member_id)
        if stream is not None:
            calls = self._calls(key).get(member_id)
            self.remove(stream, key, [member_id])
            if calls is not None and calls.leaves:
                return
            fenced = Fenced(**_place(key, event), member_ids=[member_id], code=code.value, reason=event.reason)
            stream.push(SessionEvent(fenced=fenced))

    def _calls(self, key: GroupKey) -> Mapping[str, MemberCalls]:
        table = self._tables.get(key)
        return table.calls if table is not None else {}

    def _joining(self, key: GroupKey) -> set[str]:
        """The members whose joins are under way on their streams."""
        return {member_id for member_id, calls in self._calls(key).items() if calls.joins}

    def _by_stream(self, key: GroupKey) -> list[tuple[Stream, list[str]]]:
        table = self._tables.get(key)
        return [(stream, list(member_ids)) for stream, member_ids in table.members.items()] if table is not None else []


def _place(key: GroupKey, event: JournalEvent) -> dict[str, Any]:
    return {"namespace": key[0], "group_id": key[1], "revision": event.seq, "epoch": event.epoch}


def _now_s() -> float:
    return asyncio.get_running_loop().time()
