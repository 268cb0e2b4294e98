"""The liveness store's twin in memory: the same contract on plain data, for several replicas in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rota.core.group.sessions import MemberName
from rota.core.replica.ports import LivenessUnavailable, SeenMembers, ShardNews


class MemoryLiveness:
    """`Liveness` on two dictionaries, by `clock_ms`. `away`, `forget()` and `spoiled` simulate failures of a Redis."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.away = False
        self.spoiled: set[int] = set()
        """Shards whose keys another program has overwritten."""
        self._clock_ms = clock_ms
        self._seen: dict[int, dict[MemberName, int]] = {}
        self._published: dict[int, int] = {}
        self._published_before: set[int] = set()

    def forget(self) -> None:
        """Delete all entries."""
        self._seen.clear()
        self._published.clear()

    async def ping(self) -> None:
        self._check()

    async def publish(self, news: Sequence[ShardNews]) -> list[int]:
        self._check()
        now_ms, lost = self._clock_ms(), []
        for some in news:
            if some.shard_id in self.spoiled:
                self._seen.pop(some.shard_id, None)
                lost.append(some.shard_id)
                continue
            shard = self._seen.setdefault(some.shard_id, {})
            for name in some.gone:
                shard.pop(name, None)
            for name, ms_ago in some.seen_ms_ago.items():
                shard[name] = max(shard.get(name, 0), now_ms - ms_ago)
            if some.shard_id in self._published_before and some.shard_id not in self._published:
                lost.append(some.shard_id)
            self._published[some.shard_id] = now_ms
            self._published_before.add(some.shard_id)
        return lost

    async def read(self, shard_id: int) -> SeenMembers:
        self._check()
        now_ms = self._clock_ms()
        published_ms = None if shard_id in self.spoiled else self._published.get(shard_id)
        seen = {name: now_ms - at_ms for name, at_ms in self._known_of(shard_id).items()}
        return SeenMembers(seen, None if published_ms is None else now_ms - published_ms)

    async def seen_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        self._check()
        now_ms = self._clock_ms()
        seen = (self._known_of(shard_id).get(name) for shard_id, name in members)
        return [None if at_ms is None else now_ms - at_ms for at_ms in seen]

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        self._check()
        shard = self._known_of(shard_id)
        known = [name in shard for name in members]
        shard.update({name: self._clock_ms() for name in members if name in shard})
        return known

    async def close(self) -> None:
        """Do nothing."""

    def _known_of(self, shard_id: int) -> dict[MemberName, int]:
        return {} if shard_id in self.spoiled else self._seen.get(shard_id, {})

    def _check(self) -> None:
        if self.away:
            raise LivenessUnavailable("the liveness store was made to be away")
