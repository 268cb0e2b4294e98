"""Shared liveness: how replicas use a store of last heartbeats that may be slow, be away, and forget everything.

The owner of a shard decides by its own memory: it expires a member at the end of its session. A heartbeat may have
reached another replica, though, which could not reach the owner; and an owner that dies takes its memory along. So the
owner publishes when it last received a heartbeat of each member; a replica that cannot reach the owner records the
heartbeat (`core/replica/forwarding.py`); the owner asks before it expires a member; and the next owner reads how much
is left of each session.

The store only ever adds life: a member that it does not know, or of which it knows less than the owner, keeps the
session that the owner has counted. A store that is away costs no more than that help: no member is expired because of
it, and the next owner gives every member a full session. The same goes for a store whose last publication is older than
the former owner's lease: it was away, or was set back to an earlier state.

The store may forget, so the owner publishes a shard as a whole: at first, after the shard was loaded, and again if an
update may have been lost or the store says that earlier ones are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from rota.core.group.sessions import MemberName
from rota.core.group.state import Timer
from rota.core.replica.owned_shard import PUBLISH_MS, STILL_HERE_MS, Now, OwnedShard
from rota.core.replica.ports import Answer, Liveness, SeenMembers, ShardNews
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatError, HeartbeatMany, HeartbeatManyReply, HeartbeatReply, Reply
from rota.server.runtime.clock import Clock
from rota.server.runtime.telemetry import Telemetry

logger = logging.getLogger(__name__)

WARN_MS = 10_000
AWAY_MS = 1_000
"""For how long a replica does not ask a store that has failed."""
MOST_GONE = 10_000
"""Members of a shard that are kept for a store that is away. The store forgets older ones by their age."""

Found = TypeVar("Found")


class SharedSessions:
    """What one replica has published, and whether the store answers it. Run `run()` as a task that its owner awaits.

    No call here waits longer than the store's own short deadline.
    """

    def __init__(self, liveness: Liveness, clock: Clock, telemetry: Telemetry) -> None:
        self._liveness = liveness
        self._clock = clock
        self._telemetry = telemetry
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
        self._warned_at_ms = -WARN_MS

    # --- publishing --------------------------------------------------------------------------------

    async def run(self, owned: Mapping[int, OwnedShard]) -> None:
        """Publish the heartbeats that these shards receive, until cancelled."""
        while True:
            await asyncio.sleep(PUBLISH_MS / 1000)
            await self.publish(list(owned.values()))

    def forget(self, shard_id: int, gone: Sequence[MemberName]) -> None:
        """These are gone: with the next update the store forgets them, so that no replica answers for them."""
        of_shard = self._gone.setdefault(shard_id, {})
        of_shard.update(dict.fromkeys(gone))
        while len(of_shard) > MOST_GONE:
            del of_shard[next(iter(of_shard))]

    async def publish(self, shards: Collection[OwnedShard]) -> None:
        """Publish what these shards have received since the last round, one of which begins every `PUBLISH_MS`."""
        now = self._clock.now()
        owned = [each for each in shards if each.may_answer(now)]
        held = {each.shard_id for each in shards}
        self._lost_ms = {each: ms for each, ms in self._lost_ms.items() if now.monotonic_ms < ms + AWAY_MS}
        self._gone = {shard_id: gone for shard_id, gone in self._gone.items() if shard_id in held}
        if self._has_failed and not await self._is_back():
            for each in owned:
                each.shard.take_seen()
            return
        now = self._clock.now()
        updates = [some for each in owned if (some := self._update(each, now)) is not None]
        lost = await self._ask("publish", self._liveness.publish(updates)) if updates else None
        if lost is None:
            return
        self._telemetry.on_liveness_updates(sum(len(some.seen_ms_ago) for some in updates))
        now_ms = self._clock.monotonic_ms()
        published = {some.shard_id for some in updates} - set(lost)
        was_whole = [each for each in owned if each not in self._published_ms]
        self._lost_ms |= {each: now_ms for each in was_whole if each.shard_id in lost}
        for some in updates:
            if some.shard_id in published:
                self._note_forgotten(some)
        self._published_ms = {
            each: now_ms if each.shard_id in published else self._published_ms[each]
            for each in owned
            if each.shard_id in published or (each in self._published_ms and each.shard_id not in lost)
        }

    def _note_forgotten(self, news: ShardNews) -> None:
        """Members that have gone since this was sent are still to be forgotten."""
        self._found.pop(news.shard_id, None)
        of_shard = self._gone.get(news.shard_id, {})
        for name in news.gone:
            of_shard.pop(name, None)

    async def _is_back(self) -> bool:
        """Ask before the members of all shards are put together in vain."""
        # An update may have been lost, and heartbeats of the meantime are not kept: all is published again.
        self._published_ms.clear()
        if self._clock.monotonic_ms() < self._away_until_ms:
            return False
        try:
            await self._liveness.ping()
        except Exception as error:
            self._failed("ping", error)
            return False
        self._telemetry.on_liveness_back()
        logger.info("the liveness store is back")
        self._has_failed = False
        return True

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

    async def ask_others(self, timers: Sequence[tuple[int, Timer]]) -> Sequence[int | None]:
        """How long ago other replicas last saw the members of these timers, by shard: see `OwnedShard.others_answered`.
        None for a member that none of them knows.
        """
        names = [(shard_id, (timer.namespace, timer.group_id, timer.member_id)) for shard_id, timer in timers]
        return await self._ask_of_each("ask", names, self._liveness.seen_ms_ago(names)) or [None] * len(timers)

    async def read(self, shard_id: int) -> SeenMembers:
        """The last heartbeats of a shard that is being loaded.

        AFTER its rows were read, as replicas record heartbeats until it has an owner.
        """
        seen = None
        if self._clock.monotonic_ms() >= self._away_until_ms:
            seen = await self._ask("read", self._liveness.read(shard_id))
        if seen is None:
            return SeenMembers({}, None)
        self._found[shard_id] = tuple(seen.seen_ms_ago)
        return seen

    async def record(self, shard_id: int, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """Answer in the place of an owner that does not: the next owner reads that the members live. None if the
        store knows none of them.
        """
        beats = request.members if isinstance(request, HeartbeatMany) else (request,)
        names = [(request.namespace, request.group_id, beat.member_id) for beat in beats]
        known = await self._ask_of_each("record", names, self._liveness.record(shard_id, names))
        return Answer(_recorded(request, known)) if known and any(known) else None

    # --- the store -----------------------------------------------------------------------------------

    async def _ask_of_each(
        self, operation: str, asked: Sequence[Any], asking: Awaitable[Sequence[Found]]
    ) -> Sequence[Found] | None:
        found = await self._ask(operation, asking)
        if found is not None and len(found) != len(asked):
            self._failed(operation, ValueError(f"{len(found)} answers about {len(asked)} members"))
            return None
        return found

    async def _ask(self, operation: str, asking: Awaitable[Found]) -> Found | None:
        """The answer; None if none came: the store may have stored the update.

        The store is a help that members can do without, whatever it answers: no error of it ends this process.
        """
        try:
            return await asking
        except Exception as error:
            self._failed(operation, error)
            return None

    def _failed(self, operation: str, error: Exception) -> None:
        now_ms = self._clock.monotonic_ms()
        self._away_until_ms, self._has_failed = now_ms + AWAY_MS, True
        self._telemetry.on_liveness_failed(operation)
        if now_ms >= self._warned_at_ms + WARN_MS:
            self._warned_at_ms = now_ms
            logger.warning(
                "the liveness store does not answer; this replica uses only the heartbeats that it receives itself",
                extra={"operation": operation, "error": str(error) or repr(error)},
            )


def _recorded(request: Heartbeat | HeartbeatMany, known: Sequence[bool]) -> Reply:
    """Without a state, and with the member's own generation: this replica knows neither the group's."""
    if isinstance(request, Heartbeat):
        return HeartbeatReply(generation_id=request.generation_id)
    unknown = ErrorCode.COORDINATOR_NOT_AVAILABLE
    errors = (HeartbeatError(b.member_id, unknown) for b, ok in zip(request.members, known, strict=True) if not ok)
    return HeartbeatManyReply(generation_id=max(b.generation_id for b in request.members), errors=tuple(errors))


def _name(timer: Timer) -> MemberName:
    return (timer.namespace, timer.group_id, timer.member_id)
