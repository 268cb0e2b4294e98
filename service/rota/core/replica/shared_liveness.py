"""Shared liveness: how replicas use a store of last heartbeats that may be slow, be away, and forget everything.

The owner of a shard decides by its own memory: it expires a member at the end of its session. A heartbeat may have
reached another replica, though, which could not reach the owner; and an owner that dies takes its memory along. So the
owner publishes when it last received a heartbeat of each member; a replica that cannot reach the owner records the
heartbeat (`forwarding.py`); the owner asks before it expires a member; and the next owner reads how much is left of
each session.

The store only ever adds life: a member that it does not know, or of which it knows less than the owner, keeps the
session that the owner has counted. A store that is away costs no more than that help: no member is expired because of
it, and the next owner gives every member a full session. The same goes for a store whose last publication is older than
the former owner's lease: it was away, or was set back to an earlier state.

The store may forget, so the owner publishes a shard as a whole: at first, after the shard was loaded, and again if an
update may have been lost or the store says that earlier ones are.

A round is a generator: it yields a step, and is sent the answer, `UNAVAILABLE` where none came, with the time then.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from rota.core.group.sessions import MemberName
from rota.core.group.state import Timer
from rota.core.replica.owned_shard import STILL_HERE_MS, Now, OwnedShard
from rota.core.replica.ports import Answer, SeenMembers, ShardNews
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatError, HeartbeatMany, HeartbeatManyReply, HeartbeatReply, Reply

AWAY_MS = 1_000
"""For how long a replica does not ask a store that has failed."""
UNAVAILABLE = object()
"""The store did not answer: it may have stored the update."""


# --- steps ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ping:
    """Find out whether the store answers again; answered with nothing."""


@dataclass(slots=True)
class Publish:
    """Send these to the store; answered with the shards of which it has lost earlier updates."""

    updates: Sequence[ShardNews]


@dataclass(slots=True)
class ReadShard:
    """Read the last heartbeats of a shard; answered with `SeenMembers`."""

    shard_id: int


@dataclass(slots=True)
class LastSeen:
    """Ask how long ago each of these sent a heartbeat to some replica; answered in order, None for unknown members."""

    members: Sequence[tuple[int, MemberName]]


@dataclass(slots=True)
class RecordHeartbeats:
    """Note that these have sent a heartbeat now; answered, in order, with whether the store knows the member."""

    shard_id: int
    members: Sequence[MemberName]


Step: TypeAlias = Ping | Publish | ReadShard | LastSeen | RecordHeartbeats
Found = TypeVar("Found")
Steps: TypeAlias = Generator[Step, tuple[Any, Now], Found]


# --- one replica's side ----------------------------------------------------------------------------


MOST_GONE = 10_000
"""Members of a shard that are kept for a store that is away. The store forgets older ones by their age."""


class SharedLiveness:
    """What one replica has published, and whether the store answers it."""

    def __init__(self) -> None:
        self._gone: dict[int, dict[MemberName, None]] = {}
        """Members of each shard that the store has to forget, until it has answered that it did."""
        self._found: dict[int, Sequence[MemberName]] = {}
        """What the store knew of a shard that was loaded: its former owner may have ended before all was published."""
        self._published_ms: dict[OwnedShard, int] = {}
        """When, by the monotonic clock. A shard that is missing here is published as a whole."""
        self._lost_ms: dict[OwnedShard, int] = {}
        """Shards that the store has lost although they were published as a whole: they are published again later."""
        self._has_failed = False
        self._away_until_ms = 0

    # --- publishing --------------------------------------------------------------------------------

    def forget(self, shard_id: int, gone: Sequence[MemberName]) -> None:
        """These are gone: with the next update the store forgets them, so that no replica answers for them."""
        of_shard = self._gone.setdefault(shard_id, {})
        of_shard.update(dict.fromkeys(gone))
        while len(of_shard) > MOST_GONE:
            del of_shard[next(iter(of_shard))]

    def publish(self, shards: Collection[OwnedShard], now: Now) -> Steps[None]:
        """Publish what these shards have received since the last round, one of which begins every `PUBLISH_MS`."""
        owned = [each for each in shards if each.may_answer(now)]
        held = {each.shard_id for each in shards}
        self._lost_ms = {each: ms for each, ms in self._lost_ms.items() if now.monotonic_ms < ms + AWAY_MS}
        self._gone = {shard_id: gone for shard_id, gone in self._gone.items() if shard_id in held}
        if self._has_failed:
            is_back, now = yield from self._is_back(now)
            if not is_back:
                for each in owned:
                    each.shard.take_seen()
                return
        updates = [some for each in owned if (some := self._update(each, now)) is not None]
        if not updates:
            return
        lost, now = yield Publish(updates)
        if lost is UNAVAILABLE:
            self._failed(now)
            return
        published = {some.shard_id for some in updates} - set(lost)
        was_whole = [each for each in owned if each not in self._published_ms]
        self._lost_ms |= {each: now.monotonic_ms for each in was_whole if each.shard_id in lost}
        for some in updates:
            if some.shard_id in published:
                self._note_forgotten(some)
        self._published_ms = {
            each: now.monotonic_ms if each.shard_id in published else self._published_ms[each]
            for each in owned
            if each.shard_id in published or (each in self._published_ms and each.shard_id not in lost)
        }

    def _note_forgotten(self, news: ShardNews) -> None:
        """Members that have gone since this was sent are still to be forgotten."""
        self._found.pop(news.shard_id, None)
        of_shard = self._gone.get(news.shard_id, {})
        for name in news.gone:
            of_shard.pop(name, None)

    def _is_back(self, now: Now) -> Steps[tuple[bool, Now]]:
        """Ask before the members of all shards are put together in vain."""
        # An update may have been lost, and heartbeats of the meantime are not kept: all is published again.
        self._published_ms.clear()
        if now.monotonic_ms < self._away_until_ms:
            return False, now
        answer, now = yield Ping()
        if answer is UNAVAILABLE:
            self._failed(now)
            return False, now
        self._has_failed = False
        return True, now

    def _update(self, owned: OwnedShard, now: Now) -> ShardNews | None:
        """What there is to publish of a shard; None if it is nothing."""
        published_ms = self._published_ms.get(owned)
        names = dict(self._gone.get(owned.shard_id, {}))
        if published_ms is None:
            if owned in self._lost_ms:
                owned.shard.take_seen()
                return None
            owned.shard.mark_all_seen()
            names |= dict.fromkeys(self._found.get(owned.shard_id, ()))
        gone = [name for name in names if not owned.shard.has_member(name)]
        seen = owned.shard.take_seen()
        is_silent = not seen and not gone
        if is_silent and published_ms is not None and now.monotonic_ms < published_ms + STILL_HERE_MS:
            return None
        if is_silent and not owned.shard.groups:
            return None
        ms_ago = {name: max(0, now.wall_ms - at_ms) for name, at_ms in seen.items() if at_ms is not None}
        # While a parked call proves that a member lives, no time of its last heartbeat may end its session.
        parked = [name for name, at_ms in seen.items() if at_ms is None]
        return ShardNews(owned.shard_id, ms_ago, gone + parked)

    # --- expiring, taking over, and heartbeats that no owner answers ---------------------------------

    def ask_others(self, timers: Sequence[tuple[int, Timer]]) -> Steps[Sequence[int | None]]:
        """How long ago other replicas last saw the members of these timers, by shard: see `OwnedShard.others_answered`.
        None for a member that none of them knows.
        """
        seen, now = yield LastSeen([(shard_id, _name(timer)) for shard_id, timer in timers])
        if seen is UNAVAILABLE:
            self._failed(now)
            return [None] * len(timers)
        found: Sequence[int | None] = seen
        return found

    def read(self, shard_id: int, now: Now) -> Steps[SeenMembers]:
        """The last heartbeats of a shard that is being loaded.

        AFTER its rows were read, as replicas record heartbeats until it has an owner.
        """
        if now.monotonic_ms < self._away_until_ms:
            return SeenMembers({}, None)
        seen, now = yield ReadShard(shard_id)
        if seen is UNAVAILABLE:
            self._failed(now)
            return SeenMembers({}, None)
        found: SeenMembers = seen
        self._found[shard_id] = tuple(found.seen_ms_ago)
        return found

    def record(self, shard_id: int, request: Heartbeat | HeartbeatMany) -> Steps[Answer | None]:
        """Answer in the place of an owner that does not: the next owner reads that the members live. None where the
        store knows none of them.
        """
        beats = request.members if isinstance(request, HeartbeatMany) else (request,)
        known, now = yield RecordHeartbeats(
            shard_id, [(request.namespace, request.group_id, beat.member_id) for beat in beats]
        )
        if known is UNAVAILABLE:
            self._failed(now)
            return None
        return Answer(_recorded(request, known)) if any(known) else None

    def _failed(self, now: Now) -> None:
        self._away_until_ms = now.monotonic_ms + AWAY_MS
        self._has_failed = True


def _recorded(request: Heartbeat | HeartbeatMany, known: Sequence[bool]) -> Reply:
    """Without a state, and with the member's own generation: this replica knows neither the group's."""
    if isinstance(request, Heartbeat):
        return HeartbeatReply(generation_id=request.generation_id)
    unknown = ErrorCode.COORDINATOR_NOT_AVAILABLE
    errors = (HeartbeatError(b.member_id, unknown) for b, ok in zip(request.members, known, strict=True) if not ok)
    return HeartbeatManyReply(generation_id=max(b.generation_id for b in request.members), errors=tuple(errors))


def _name(timer: Timer) -> MemberName:
    return (timer.namespace, timer.group_id, timer.member_id)
