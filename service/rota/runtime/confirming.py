"""The shell of `Prerequisite.OWNER`: asks the store whether shards are still owned here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from rota.replica.ports import ShardStore, StoreUnavailable
from rota.replica.prerequisites import NOT_OWNED, claim_to_confirm
from rota.runtime.host import ShardHost


class Confirmations:
    """Requests that come during one read share the next."""

    def __init__(self, store: ShardStore, replica_id: str, give_up: Callable[[ShardHost, str], None]) -> None:
        self._store = store
        self._replica_id = replica_id
        self._give_up = give_up
        self._asked: set[ShardHost] = set()
        """Of the next read."""
        self._next: asyncio.Task[Collection[ShardHost]] | None = None
        self._is_reading = asyncio.Lock()

    async def is_owner(self, host: ShardHost) -> bool:
        """Whether the store said, after this call, that the shard is owned here. False where it does not answer."""
        self._asked.add(host)
        self._next = self._next or asyncio.create_task(self._read_next())
        return host in await asyncio.shield(self._next)

    async def _read_next(self) -> Collection[ShardHost]:
        async with self._is_reading:
            hosts, self._asked, self._next = self._asked, set(), None
            try:
                owned = await self._store.confirm([claim_to_confirm(host.owned) for host in hosts], self._replica_id)
            except StoreUnavailable:
                return ()
        for host in hosts:
            if host.shard_id not in owned:
                self._give_up(host, NOT_OWNED)
        return {host for host in hosts if host.shard_id in owned}
