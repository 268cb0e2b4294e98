"""What replicas tell each other of their members' sessions, through a liveness store that may come, go and forget.

The owner of a shard decides by its own memory. The store only adds what others have heard: in the moment before a
member is expired, and when a shard is taken over. What the store does not know never counts against anybody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from rota.group.result import Timer
from rota.group.sessions import MemberName
from rota.replica.ports import Heard, JournalEvent, Liveness, LivenessUnavailable, ShardNews
from rota.runtime.clock import Clock
from rota.runtime.host import ShardHost
from rota.runtime.telemetry import Telemetry

logger = logging.getLogger(__name__)

TELL_S = 0.075
AWAY_MS = 1_000
"""How long a store that failed is left alone."""
STILL_HERE_MS = 500
"""A shard in which nothing happens is told of this often, so that the next owner knows until when it was held."""
WARN_MS = 10_000
GONE = frozenset({"member_left", "member_expired", "member_removed", "member_fenced"})


class SharedSessions:
    """Run `run()` as a task that somebody awaits. Nothing here waits longer than the store's own short deadline."""

    def __init__(
        self, liveness: Liveness, clock: Clock, telemetry: Telemetry, hosts: Callable[[], Iterable[ShardHost]]
    ) -> None:
        self._liveness = liveness
        self._clock = clock
        self._telemetry = telemetry
        self._hosts = hosts
        self._gone: dict[int, list[MemberName]] = {}
        self._told_at_ms: dict[ShardHost, int] = {}
        """Who is not in here is told of as a whole: a shard that was just loaded, or whose news may be lost."""
        self._due: list[tuple[ShardHost, Timer]] = []
        self._is_due = asyncio.Event()
        self._has_failed = False
        self._away_until_ms = 0
        self._warned_at_ms = -WARN_MS

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_telling())
            tasks.create_task(self._keep_asking())

    # --- taking over -------------------------------------------------------------------------------

    async def read(self, shard_id: int) -> Heard:
        """What is known of a shard that is being loaded; nothing where the store is away."""
        if self._is_away():
            return Heard({}, None)
        try:
            return await self._liveness.read(shard_id)
        except LivenessUnavailable as error:
            self._failed("read", error)
            return Heard({}, None)

    # --- expiring ----------------------------------------------------------------------------------

    def ask(self, host: ShardHost, timer: Timer) -> None:
        """This timer would expire its member: ring it again once the others have been asked."""
        self._due.append((host, timer))
        self._is_due.set()

    async def _keep_asking(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            due, self._due = self._due, []
            answers = await self._ask([(host.shard_id, _name(timer)) for host, timer in due])
            for (host, timer), heard_ms_ago in zip(due, answers, strict=True):
                host.ring_asked(timer, heard_ms_ago)

    async def _ask(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        try:
            return await self._liveness.heard_ms_ago(members)
        except LivenessUnavailable as error:
            self._failed("ask", error)
            return [None] * len(members)

    # --- heartbeats that no owner answers ------------------------------------------------------------

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        """Note that these were heard, if they are known; True for each that now is."""
        try:
            return await self._liveness.record(shard_id, members)
        except LivenessUnavailable as error:
            self._failed("record", error)
            return [False] * len(members)

    # --- telling -----------------------------------------------------------------------------------

    def on_events(self, shard_id: int, events: Sequence[JournalEvent]) -> None:
        """Members that are no more are forgotten, so that nobody answers for them."""
        for event in events:
            if event.kind in GONE:
                name = (event.namespace, event.group_id, event.payload["member_id"])
                self._gone.setdefault(shard_id, []).append(name)

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            await self._tell()

    async def _tell(self) -> None:
        hosts = [host for host in self._hosts() if host.may_answer()]
        gone, self._gone = self._gone, {}
        if self._has_failed and not await self._is_back():
            for host in hosts:
                host.shard.take_heard()
            return
        news = [some for host in hosts if (some := self._news(host, gone.get(host.shard_id, []))) is not None]
        if not news:
            return
        try:
            lost = set(await self._liveness.tell(news))
        except LivenessUnavailable as error:
            self._failed("tell", error)
            return
        now_ms, told = self._clock.monotonic_ms(), {some.shard_id for some in news} - lost
        known = {host: at_ms for host, at_ms in self._told_at_ms.items() if host in set(hosts)}
        self._told_at_ms = known | {host: now_ms for host in hosts if host.shard_id in told}
        for host in hosts:
            if host.shard_id in lost:
                self._told_at_ms.pop(host, None)
        self._telemetry.on_liveness_told(sum(len(some.heard_ms_ago) for some in news))

    def _news(self, host: ShardHost, gone: list[MemberName]) -> ShardNews | None:
        told_at_ms = self._told_at_ms.get(host)
        if told_at_ms is None:
            host.shard.hear_of_all()
        heard = host.shard.take_heard()
        is_silent = not heard and not gone
        if is_silent and told_at_ms is not None and self._clock.monotonic_ms() < told_at_ms + STILL_HERE_MS:
            return None
        if is_silent and not host.shard.groups:
            return None
        now_ms = self._clock.now_ms()
        ms_ago = {name: max(0, now_ms - at_ms) for name, at_ms in heard.items() if at_ms is not None}
        parked = [name for name, at_ms in heard.items() if at_ms is None]
        return ShardNews(host.shard_id, ms_ago, gone + parked)

    # --- a store that is away ------------------------------------------------------------------------

    def _is_away(self) -> bool:
        return self._clock.monotonic_ms() < self._away_until_ms

    async def _is_back(self) -> bool:
        """Look before a whole replica's members are put together for nothing."""
        # What was on its way may be lost, and what comes meanwhile is not kept: all is told again.
        self._told_at_ms.clear()
        if self._is_away():
            return False
        try:
            await self._liveness.ping()
        except LivenessUnavailable as error:
            self._failed("ping", error)
            return False
        self._has_failed = False
        self._telemetry.on_liveness_back()
        logger.info("the liveness store is back")
        return True

    def _failed(self, operation: str, error: LivenessUnavailable) -> None:
        now_ms = self._clock.monotonic_ms()
        self._away_until_ms = now_ms + AWAY_MS
        self._has_failed = True
        self._telemetry.on_liveness_failed(operation)
        if now_ms >= self._warned_at_ms + WARN_MS:
            self._warned_at_ms = now_ms
            logger.warning(
                "the liveness store does not answer; this replica goes by what it hears itself",
                extra={"operation": operation, "error": str(error)},
            )


def _name(timer: Timer) -> MemberName:
    return (timer.namespace, timer.group_id, timer.member_id)
