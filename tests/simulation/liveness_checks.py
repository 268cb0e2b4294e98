"""Rules about what the liveness store adds: sessions that outlive an owner, and heartbeats without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rota.core.group import records as r
from rota.core.group.records import MemberEnd
from rota.core.replica.owned_shard import GRACE_MS, STILL_HERE_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import Heartbeat
from tests.simulation.history import Departure, History
from tests.simulation.liveness import LivenessServer

if TYPE_CHECKING:
    from tests.simulation.world import World

RACE_MS = 300
"""A heartbeat that is recorded while the owner asks for it may come too late."""
PUBLISHED_MS = 2_500
"""By then all replicas know of a member's end: its owner may have been paused for a while."""
LATE_MS = 1_000
"""How late a session may end: timers that were held back, a commit that is slow."""


def check_shared_sessions(world: World) -> list[str]:
    """Everything that is wrong with the sessions of a world that has a liveness store."""
    if world.liveness is None:
        return []
    sessions = _sessions(world.history)
    found = list(_recorded(world.history, world.liveness, sessions))
    found += _answered_for_gone(world, world.liveness)
    for departure in world.history.departures:
        found += _departed(world, world.liveness, departure, sessions)
    return found


def _recorded(history: History, liveness: LivenessServer, sessions: dict[str, int]) -> Iterator[str]:
    """L1: a member with a heartbeat recorded while its owner was silent is not expired within its session."""
    expired = {
        line.entry.record.member_id: line.decided_ms
        for line in _lines(history, r.MemberExpired)
        if line.entry.record.reason.startswith("no heartbeat")
    }
    for call in history.calls:
        request, reply = call.request, call.reply
        if not isinstance(request, Heartbeat) or reply is None or call.epoch or reply.error is not ErrorCode.NONE:
            continue
        at_ms, session_ms = expired.get(request.member_id, -1), sessions.get(request.member_id, 0)
        is_within = call.sent_ms + RACE_MS < at_ms < call.sent_ms + session_ms
        if is_within and not liveness.has_failed(call.sent_ms, at_ms):
            yield f"L1 {request.member_id} was expired at {at_ms}, its heartbeat of {call.sent_ms} was recorded"


def _answered_for_gone(world: World, liveness: LivenessServer) -> Iterator[str]:
    """L1: a heartbeat is not recorded for a member that has been gone for longer than it takes to publish that, also by
    the next owner. Where the owner did not learn that the line has landed, only the next one knows.
    """
    unknown = {(shard_id, epoch) for shard_id, epoch, _ in world.history.unknown_appends}
    gone = {
        line.entry.record.member_id: (line.landed_ms, shard_id, line.epoch)
        for shard_id, lines in world.history.journal.items()
        for line in lines
        if isinstance(line.entry.record, MemberEnd)
    }
    for call in world.history.calls:
        request, reply = call.request, call.reply
        if not isinstance(request, Heartbeat) or reply is None or call.epoch or reply.error is not ErrorCode.NONE:
            continue
        gone_ms, shard_id, epoch = gone.get(request.member_id, (call.sent_ms, 0, 0))
        moves = [at_ms for shard, _, _, at_ms in world.history.epochs if shard == shard_id and at_ms <= call.ret_ms]
        known_ms = max([gone_ms, *moves])
        if (shard_id, epoch) in unknown and known_ms == gone_ms:
            continue
        has_failed = liveness.has_failed(gone_ms - 1_000, call.ret_ms)
        if call.sent_ms > known_ms + PUBLISHED_MS and not has_failed:
            yield f"L1 {request.member_id} was gone at {gone_ms}, and its heartbeat of {call.sent_ms} was recorded"


def _departed(world: World, liveness: LivenessServer, departure: Departure, sessions: dict[str, int]) -> Iterator[str]:
    """L2: a new owner lets the session of a silent member end when it would have ended, and a grace later; or a session
    after the former owner's last publication, if that is later. The grace of an overdue session starts with the owner:
    the former one may have been paused, with heartbeats unread. No session lasts longer than one that starts then.
    """
    gone = next((ms for member_id, ms in _gone(world.history) if member_id == departure.member_id), None)
    session_ms = sessions.get(departure.member_id)
    if gone is None or session_ms is None or liveness.has_failed(departure.at_ms - session_ms, gone):
        return
    completed = [
        line.landed_ms
        for line in _lines(world.history, r.GenerationCompleted)
        if line.entry.group_id == departure.group[1] and line.landed_ms <= gone
    ]
    began_ms = max([departure.at_ms, *completed])
    shard_id = shard_of(*departure.group, world.profile.shards)
    bound_ms = began_ms + session_ms
    takeovers = list(_takeovers(world, liveness.published_ms[shard_id], shard_id, began_ms, gone))
    for at_ms, published_ms in takeovers:
        grace_ms = at_ms - published_ms + GRACE_MS
        bound_ms = max(max(bound_ms, at_ms) + grace_ms, published_ms + session_ms)
        bound_ms = min(bound_ms, at_ms + session_ms)
    if takeovers and gone > bound_ms + LATE_MS:
        yield f"L2 {departure.member_id} was last seen at {began_ms} and removed only at {gone}, bound {bound_ms}"


def _takeovers(
    world: World, published: Sequence[int], shard_id: int, from_ms: int, to_ms: int
) -> Iterator[tuple[int, int]]:
    """When each new owner started; and when the former one published last, or the start if that does not count."""
    for moved, _, _, at_ms in world.history.epochs:
        if moved == shard_id and from_ms < at_ms <= to_ms:
            last_ms = max((ms for ms in published if ms < at_ms), default=at_ms)
            is_old = at_ms - last_ms > world.profile.lease_ms + STILL_HERE_MS
            yield at_ms, at_ms if is_old else last_ms


def _gone(history: History) -> Iterator[tuple[str, int]]:
    for line in _lines(history, r.MemberExpired):
        yield line.entry.record.member_id, line.decided_ms


def _sessions(history: History) -> dict[str, int]:
    return {
        line.entry.record.member.member_id: line.entry.record.member.session_timeout_ms
        for line in _lines(history, r.MemberJoined)
    }


def _lines(history: History, kind: type[Any]) -> Iterator[Any]:
    """The journal's events of one kind, as `Landed`."""
    for lines in history.journal.values():
        yield from (line for line in lines if isinstance(line.entry.record, kind))
