"""Maps members to session streams, pushes events of their groups to them, and has members of lost streams leave.

One listener per group serves all streams. A member is bound to one stream, the last that named it. So a lost stream
takes along only those that have not shown up on another one since.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rota.core.replica.forwarding import UNANSWERED
from rota.core.replica.ports import Answer, JournalEvent
from rota.core.types import server_side
from rota.protocol.causes import MEMBER_ENDS
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import HeartbeatMany, JoinGroup, JoinReply, LeaveGroup, LeaveReply, LeavingMember, SyncGroup
from rota.server.access.guard import Admission
from rota.server.grpc.receiving import Turns
from rota.server.ports import ServedCoordinator
from rota.v1.coordinator_pb2 import Election, Fenced, Generation, MemberAssignment, Rebalance, SessionEvent

GroupKey = tuple[str, str]
OF_MEMBERS = (None, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
"""Errors of heartbeats that only a member gets."""
IS_NOT_ITS_MEMBER = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)
"""Errors by which the client has no such member: another caller may have one."""
RETRY_LEAVE_S = (0.1, 0.5, 2.0)
BYTES_OF_A_LEAVE = 512
"""What the leave of a stream's members from one group counts as in `Turns`: it costs as much as some joins."""

_log = logging.getLogger(__name__)


class StreamedCoordinator(ServedCoordinator, Protocol):
    """A coordinator that also publishes the journal lines of groups: `LocalCoordinator` and `RoutedCoordinator`."""

    def subscribe(
        self, namespace: str, group_id: str, listener: Callable[[Sequence[JournalEvent]], None]
    ) -> Callable[[], None]:
        """Call `listener` with the journal lines of the group, until the returned function is called."""


class Stream(Protocol):
    """A session stream."""

    members: dict[tuple[GroupKey, str], None]
    """The members that are bound to it."""

    def push(self, event: SessionEvent) -> None:
        """Send an event; it is dropped if the stream is over."""


@dataclass(slots=True)
class _Group:
    """A group with members on streams."""

    stop_listening: Callable[[], None]
    streams: dict[str, Stream] = field(default_factory=dict)
    """By member id."""


class Roster:
    """All members on the streams of a server."""

    def __init__(self, coordinator: StreamedCoordinator, admission: Admission, turns: Turns) -> None:
        """`turns` are those of the streams' calls: members of streams that end at once leave in these, too."""
        self._coordinator = coordinator
        self._admission = admission
        self._turns = turns
        self._groups: dict[GroupKey, _Group] = {}
        self._calling: set[tuple[GroupKey, str]] = set()
        """Members with a join, a sync or a leave under way on their stream: they get no pushes."""
        self._leaving: set[asyncio.Task[None]] = set()

    def streams(self, key: GroupKey) -> Mapping[str, Stream]:
        """The stream of each member of the group that is on one, by member id; not to be kept."""
        group = self._groups.get(key)
        return group.streams if group is not None else {}

    def bind(self, stream: Stream, key: GroupKey, member_id: str) -> None:
        """Bind the member to this stream; it leaves the one that it was on before."""
        if key not in self._groups:
            self._groups[key] = _Group(self._coordinator.subscribe(*key, lambda lines: self._on_lines(key, lines)))
        streams = self._groups[key].streams
        if member_id in streams:
            del streams[member_id].members[key, member_id]
        streams[member_id] = stream
        stream.members[key, member_id] = None

    def remove(self, stream: Stream, key: GroupKey, member_ids: Iterable[str]) -> None:
        """Take these members off, if they are on this stream."""
        streams: Any = self.streams(key)
        for member_id in member_ids:
            if streams.get(member_id) is stream:
                del streams[member_id], stream.members[key, member_id]
        if key in self._groups and not streams:
            self._groups.pop(key).stop_listening()

    def take_off(self, stream: Stream, key: GroupKey) -> list[str]:
        """Take all members of the group off this stream; returns them."""
        member_ids = [member_id for of_group, member_id in stream.members if of_group == key]
        self.remove(stream, key, member_ids)
        return member_ids

    # --- calls of members -----------------------------------------------------------------------------

    async def follow(
        self, stream: Stream, request: JoinGroup | SyncGroup | LeaveGroup, asking: Awaitable[Answer]
    ) -> Answer:
        """Await the answer to a call on this stream, and bind or remove its members as the answer says.

        A member that joins is bound at once: the stream may be lost before the answer.
        """
        key = (request.namespace, request.group_id)
        if isinstance(request, JoinGroup) and request.member_id:
            self.bind(stream, key, request.member_id)
        named = request.members if isinstance(request, LeaveGroup) else (request,)
        streams, member_ids = self.streams(key), [each.member_id for each in named]
        calling = {(key, member_id) for member_id in member_ids if streams.get(member_id) is stream}
        self._calling |= calling
        try:
            answer = await asking
        except RejectedRequest as rejected:
            if isinstance(request, JoinGroup) and rejected.code in IS_NOT_ITS_MEMBER:
                self.remove(stream, key, member_ids)
            raise
        finally:
            self._calling -= calling
        match answer.reply:
            case JoinReply(member_id=member_id):
                self.bind(stream, key, member_id)
            case LeaveReply():
                self.remove(stream, key, member_ids)
        return answer

    def on_heartbeats(self, stream: Stream, request: HeartbeatMany, reply: Any) -> None:
        """Bind all members with a heartbeat to the stream, and remove those that are no members.

        A member of which its owner has not said anything stays where it is.
        """
        key = (request.namespace, request.group_id)
        streams, errors = self.streams(key), {each.member_id: each.error for each in reply.errors}
        for beat in request.members if reply.error is ErrorCode.NONE else ():
            member_id, error = beat.member_id, errors.get(beat.member_id)
            if error in IS_NOT_ITS_MEMBER:
                self.remove(stream, key, [member_id])
            elif streams.get(member_id) is not stream and error in OF_MEMBERS:
                self.bind(stream, key, member_id)

    # --- streams that are lost ------------------------------------------------------------------------

    def lose(self, stream: Stream, leave_after_ms: int | None) -> None:
        """Remove a lost stream. Its members leave after this long, unless that is None, in the name of its caller."""
        for key in groups_on(stream):
            if leave_after_ms is None:
                self.take_off(stream, key)
            else:
                task = asyncio.create_task(self._have_leave(stream, key, leave_after_ms))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    def stop(self) -> None:
        """Forget all members on streams and pending leaves: these members expire, if they do not come back."""
        for group in self._groups.values():
            group.stop_listening()
        self._groups.clear()
        for task in self._leaving:
            task.cancel()

    async def _have_leave(self, stream: Stream, key: GroupKey, leave_after_ms: int) -> None:
        """Have the members that are still on the stream leave this group; again while its owner is not available."""
        lost_s = _now_s()
        try:
            await asyncio.sleep(leave_after_ms / 1000)
            await self._turns.take(BYTES_OF_A_LEAVE)
            member_ids = self.take_off(stream, key)
            for pause_s in (*RETRY_LEAVE_S, 0.0) if member_ids else ():
                # Only the coordinator knows whether they sent heartbeats elsewhere since the loss, so it decides. It
                # gets no grace: this loop may be late, and early heartbeats in it would count for nothing.
                silent_ms = int((_now_s() - lost_s) * 1000)
                reason = f"its stream was lost {leave_after_ms} ms ago"
                leaving = tuple(LeavingMember(member_id, None, reason) for member_id in member_ids)
                leave = LeaveGroup(*key, leaving, silent_for_ms=silent_ms)
                answer = await self._coordinator.call(self._admission.in_name_of_caller(leave))
                if answer.reply.error not in UNANSWERED:
                    return
                await asyncio.sleep(pause_s)
            if member_ids:
                _log.warning("members of a lost stream could not leave", extra={"group_id": key[1]})
        except Exception:
            _log.exception("members of a lost stream could not leave", extra={"group_id": key[1]})

    # --- what groups do -------------------------------------------------------------------------------

    def _on_lines(self, key: GroupKey, lines: Sequence[JournalEvent]) -> None:
        for number, event in enumerate(lines):
            match event.kind:
                case "rebalance_started":
                    self._push_rebalance(key, event, election_in(lines[number:]))
                case "assignment_synced" if event.payload["resync"]:
                    self._push_generation(key, event)
                case "member_fenced":
                    self._push_fenced(key, event, ErrorCode.FENCED_INSTANCE_ID)
                case kind if kind in MEMBER_ENDS:
                    self._push_fenced(key, event, ErrorCode.UNKNOWN_MEMBER_ID)

    def _push_rebalance(self, key: GroupKey, event: JournalEvent, election: tuple[JournalEvent, ...]) -> None:
        """Have members join; members of an election are led into the next generation by the event itself."""
        elected = election[0].payload["member_ids"] if election else ()
        for stream, member_ids in self._by_stream(key).items():
            led = [member_id for member_id in member_ids if member_id in elected]
            rest = [member_id for member_id in member_ids if member_id not in elected]
            if led:
                stream.push(SessionEvent(election=_election(key, election, led)))
            if rest:
                rebalance = Rebalance(**_place(key, event), generation_id=event.generation_id, member_ids=rest)
                rebalance.reason, rebalance.by = event.reason, event.payload["by"]
                stream.push(SessionEvent(rebalance=rebalance))

    def _push_generation(self, key: GroupKey, event: JournalEvent) -> None:
        """The leader that opened it gets it as its answer; if the server assigns, the leader did not open it."""
        for stream, member_ids in self._by_stream(key).items():
            generation = Generation(**_place(key, event), generation_id=event.generation_id)
            generation.members.extend(_shares(event, member_ids))
            stream.push(SessionEvent(generation=generation))

    def _push_fenced(self, key: GroupKey, event: JournalEvent, code: ErrorCode) -> None:
        member_id = event.payload["member_id"]
        stream = self.streams(key).get(member_id)
        if stream is None:
            return
        self.remove(stream, key, [member_id])
        if (key, member_id) not in self._calling:
            fenced = Fenced(**_place(key, event), member_ids=[member_id], code=code.value, reason=event.reason)
            stream.push(SessionEvent(fenced=fenced))

    def _by_stream(self, key: GroupKey) -> dict[Stream, list[str]]:
        """The members that get pushes about the group."""
        found: dict[Stream, list[str]] = {}
        for member_id, stream in self.streams(key).items():
            if (key, member_id) not in self._calling:
                found.setdefault(stream, []).append(member_id)
        return found


def groups_on(stream: Stream) -> list[GroupKey]:
    """The groups that have members on this stream."""
    return list(dict.fromkeys(key for key, _ in stream.members))


def election_in(lines: Sequence[JournalEvent]) -> tuple[JournalEvent, ...]:
    """The lines that complete and assign a generation in the transaction in which `lines[0]` ends the one before.

    Empty if there is no such generation, or if members that do not lead may hold something of the generation before.
    Its members have joined or count as joined, and hold nothing. So each of them may enter it by these lines alone
    (ADR 95).
    """
    completed: JournalEvent | None = None
    for line in lines[1:]:
        match line.kind:
            case "rebalance_started":
                return ()
            case "generation_completed":
                completed = line
            case "assignment_synced" if completed is not None and not line.payload["resync"]:
                side = server_side(completed.payload["protocol_type"], completed.payload["protocol_name"])
                if side is None or side.succession is None or not side.succession.followers_hold_nothing:
                    return ()
                return completed, line
    return ()


def _election(key: GroupKey, lines: tuple[JournalEvent, ...], member_ids: list[str]) -> Election:
    """What these members' joins would be answered with."""
    completed, synced = lines
    payload = completed.payload
    return Election(
        **_place(key, synced),
        generation_id=payload["generation_id"],
        members=_shares(synced, member_ids),
        leader_id=payload["leader_id"],
        protocol_type=payload["protocol_type"],
        protocol_name=payload["protocol_name"],
        fencing_token=fencing_token(payload["generation_id"]),
        reason=completed.reason,
        by=payload["by"],
    )


def _shares(synced: JournalEvent, member_ids: Iterable[str]) -> list[MemberAssignment]:
    shares = dict(synced.payload["assignments"])
    return [
        MemberAssignment(member_id=member_id, assignment=b64decode(shares.get(member_id, "")))
        for member_id in member_ids
    ]


def _place(key: GroupKey, event: JournalEvent) -> dict[str, Any]:
    return {"namespace": key[0], "group_id": key[1], "revision": event.seq, "epoch": event.epoch}


def _now_s() -> float:
    return asyncio.get_running_loop().time()
