"""The liveness store's twin in memory: the same contract on plain data, for several replicas in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rota.group.sessions import MemberName
from rota.replica.ports import Heard, LivenessUnavailable, ShardNews


class MemoryLiveness:
    """`Liveness` on two dictionaries, by `clock_ms`. `away` and `forget()` do to it what happens to a Redis."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.away = False
        self._clock_ms = clock_ms
        self._heard: dict[int, dict[MemberName, int]] = {}
        self._told: dict[int, int] = {}
        self._told_before: set[int] = set()

    def forget(self) -> None:
        """Lose everything."""
        self._heard.clear()
        self._told.clear()

    async def ping(self) -> None:
        self._check()

    async def tell(self, news: Sequence[ShardNews]) -> list[int]:
        self._check()
        now_ms, lost = self._clock_ms(), []
        for some in news:
            shard = self._heard.setdefault(some.shard_id, {})
            for name in some.gone:
                shard.pop(name, None)
            for name, ms_ago in some.heard_ms_ago.items():
                shard[name] = max(shard.get(name, 0), now_ms - ms_ago)
            if some.shard_id in self._told_before and some.shard_id not in self._told:
                lost.append(some.shard_id)
            self._told[some.shard_id] = now_ms
            self._told_before.add(some.shard_id)
        return lost

    async def read(self, shard_id: int) -> Heard:
        self._check()
        now_ms, told_ms = self._clock_ms(), self._told.get(shard_id)
        heard = {name: now_ms - at_ms for name, at_ms in self._heard.get(shard_id, {}).items()}
        return Heard(heard, None if told_ms is None else now_ms - told_ms)

    async def heard_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        self._check()
        now_ms = self._clock_ms()
        heard = (self._heard.get(shard_id, {}).get(name) for shard_id, name in members)
        return [None if at_ms is None else now_ms - at_ms for at_ms in heard]

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        self._check()
        shard = self._heard.get(shard_id, {})
        known = [name in shard for name in members]
        shard.update({name: self._clock_ms() for name in members if name in shard})
        return known

    async def close(self) -> None:
        """Nothing to let go of."""

    def _check(self) -> None:
        if self.away:
            raise LivenessUnavailable("the liveness store was told to be away")
