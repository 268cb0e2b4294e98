"""Maps members to session streams, and pushes rebalance events to them.

One listener per group serves all streams. A member has one seat, on the last stream that named it. So a lost stream
takes along only those that have not shown up on another one since.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rota.api.grpc.ports import StreamedCoordinator
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import HeartbeatError, HeartbeatMany, LeaveGroup, LeavingMember
from rota.replica.ports import JournalEvent
from rota.v1.coordinator_pb2 import Fenced, Generation, MemberAssignment, Rebalance, SessionEvent

GroupKey = tuple[str, str]
RETRY_LEAVE_S = (0.0, 0.1, 0.5, 2.0)
_GONE = {"member_left", "member_expired", "member_removed"}

_log = logging.getLogger(__name__)


class Stream(Protocol):
    """Where news goes. After the stream is lost, it goes nowhere."""

    def push(self, news: SessionEvent) -> None: ...


@dataclass(slots=True, eq=False)
class Seat:
    """A member on a stream. While it joins there it is not told to join, nor what its own sync brought about."""

    stream: Stream
    member_id: str
    group_instance_id: str | None
    joins: int = 0
    syncs: int = 0


@dataclass(slots=True)
class _Table:
    """The seats of one group, by member id, and how to stop listening to it."""

    seats: dict[str, Seat]
    stop_listening: Callable[[], None]


class Roster:
    """All seats of a server."""

    def __init__(self, coordinator: StreamedCoordinator) -> None:
        self._coordinator = coordinator
        self._tables: dict[GroupKey, _Table] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def seats(self, key: GroupKey) -> Mapping[str, Seat]:
        """The group's seats by member id; not to be kept."""
        table = self._tables.get(key)
        return table.seats if table is not None else {}

    def seat(self, stream: Stream, key: GroupKey, member_id: str, group_instance_id: str | None) -> Seat:
        """The member's seat on this stream; on whichever it was before, it is not any more."""
        table = self._tables.get(key)
        if table is None:
            stop_listening = self._coordinator.subscribe(*key, lambda event: self._on_event(key, event))
            table = self._tables[key] = _Table({}, stop_listening)
        seat = table.seats.get(member_id)
        if seat is None or seat.stream is not stream:
            seat = table.seats[member_id] = Seat(stream, member_id, group_instance_id)
        return seat

    def remove(self, stream: Stream, key: GroupKey, member_ids: Iterable[str]) -> list[Seat]:
        """Take members off this stream; returns those that were on it."""
        table = self._tables.get(key)
        if table is None:
            return []
        seats = table.seats
        gone = [seat for m in member_ids if (seat := seats.get(m)) is not None and seat.stream is stream]
        for seat in gone:
            del seats[seat.member_id]
        if not seats:
            del self._tables[key]
            table.stop_listening()
        return gone

    def give_back(self, seat: Seat, key: GroupKey, former: Seat | None) -> None:
        """The member turned out to be another caller's: its own stream has it again, this one does not."""
        if former is not None and former.stream is seat.stream:
            return
        self.remove(seat.stream, key, [seat.member_id])
        if former is not None:
            self.seat(former.stream, key, former.member_id, former.group_instance_id)

    def on_heartbeat(self, stream: Stream, request: HeartbeatMany, errors: Iterable[HeartbeatError]) -> None:
        """Seat all members with a heartbeat on the stream, except those that were removed."""
        key = (request.namespace, request.group_id)
        seats = self.seats(key)
        gone = {each.member_id for each in errors if each.error is not ErrorCode.REBALANCE_IN_PROGRESS}
        if gone:
            self.remove(stream, key, gone)
        for beat in request.members:
            seat = seats.get(beat.member_id)
            if (seat is None or seat.stream is not stream) and beat.member_id not in gone:
                self.seat(stream, key, beat.member_id, beat.group_instance_id)

    def lose(self, stream: Stream, keys: Iterable[GroupKey], leave_after_ms: int | None) -> None:
        """The stream is gone. Its members leave after a grace, if they had asked for that."""
        for key in keys:
            member_ids = [seat.member_id for seat in self.seats(key).values() if seat.stream is stream]
            if leave_after_ms is None:
                self.remove(stream, key, member_ids)
                continue
            task = asyncio.create_task(self._leave(stream, key, member_ids, leave_after_ms, _now_s()))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def stop(self) -> None:
        """Forget all seats and pending leaves: these members expire, if they do not come back."""
        tables, self._tables = self._tables, {}
        for table in tables.values():
            table.stop_listening()
        leaving = list(self._leaving)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    async def _leave(
        self, stream: Stream, key: GroupKey, member_ids: list[str], leave_after_ms: int, lost_s: float
    ) -> None:
        """Only the coordinator knows whether they sent heartbeats elsewhere since the loss, so it decides."""
        await asyncio.sleep(leave_after_ms / 1000)
        reason = f"its stream was lost {leave_after_ms} ms ago"
        seats = self.remove(stream, key, member_ids)
        if not seats:
            return
        for pause_s in RETRY_LEAVE_S:
            await asyncio.sleep(pause_s)
            # Not the grace: this loop may be late, and early heartbeats in it would count for nothing.
            silent_ms = int((_now_s() - lost_s) * 1000)
            leaving = tuple(LeavingMember(s.member_id, s.group_instance_id, reason, silent_ms) for s in seats)
            answer = await self._coordinator.call(LeaveGroup(*key, leaving))
            if not _is_for_later(answer.reply.error):
                return
        _log.warning("members of a lost stream could not leave", extra={"group_id": key[1], "members": len(seats)})

    # --- what groups do ------------------------------------------------------------------------------

    def _on_event(self, key: GroupKey, event: JournalEvent) -> None:
        match event.kind:
            case "rebalance_started":
                self._notify_rebalance(key, event)
            case "assignment_synced":
                if event.payload["resync"]:
                    self._notify_generation(key, event)
            case "member_fenced":
                self._notify_fenced(key, event, ErrorCode.FENCED_INSTANCE_ID)
            case kind if kind in _GONE:
                self._notify_fenced(key, event, ErrorCode.UNKNOWN_MEMBER_ID)

    def _notify_rebalance(self, key: GroupKey, event: JournalEvent) -> None:
        for stream, seats in self._by_stream(key):
            notified = [seat.member_id for seat in seats if not seat.joins]
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
        for stream, seats in self._by_stream(key):
            notified = [
                MemberAssignment(member_id=seat.member_id, assignment=b64decode(shares.get(seat.member_id, "")))
                for seat in seats
                if not seat.joins and not (seat.syncs and seat.member_id == leader_id)
            ]
            if notified:
                generation = Generation(**_place(key, event), generation_id=event.generation_id, members=notified)
                stream.push(SessionEvent(generation=generation))

    def _notify_fenced(self, key: GroupKey, event: JournalEvent, code: ErrorCode) -> None:
        member_id = event.payload["member_id"]
        seat = self.seats(key).get(member_id)
        if seat is not None:
            self.remove(seat.stream, key, [member_id])
            fenced = Fenced(**_place(key, event), member_ids=[member_id], code=code.value, reason=event.reason)
            seat.stream.push(SessionEvent(fenced=fenced))

    def _by_stream(self, key: GroupKey) -> Iterable[tuple[Stream, list[Seat]]]:
        streams: dict[Stream, list[Seat]] = {}
        for seat in self.seats(key).values():
            streams.setdefault(seat.stream, []).append(seat)
        return streams.items()


def _place(key: GroupKey, event: JournalEvent) -> dict[str, Any]:
    return {"namespace": key[0], "group_id": key[1], "revision": event.seq, "epoch": event.epoch}


def _is_for_later(error: ErrorCode) -> bool:
    return error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
