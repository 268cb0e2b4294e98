"""API tokens in the store's table: kept in memory, looked at again every few seconds and when one is not known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from rota.access.tokens import TokenRecord
from rota.replica.ports import StoreUnavailable
from rota.server.access.token_files import by_id

LOOK_EVERY_S = 1.0
"""So long a revoked token may go on at a replica; where work is open with it, one sweep longer."""
LEAST_PAUSE_S = 0.25
"""Between looks that unknown tokens cause: all that come in this time share one, so they do not load the store."""
NOTE_USE_EVERY_MS = 300_000
"""Resolution of a token's stored last use: so there is one write for a token, not one for each replica."""

_log = logging.getLogger(__name__)


class TokenTable(Protocol):
    """The part of the store that is needed here."""

    async def read_tokens(self) -> list[TokenRecord]: ...

    async def note_token_uses(self, used_at_ms: Mapping[str, int]) -> None: ...


class StoredTokens:
    """The tokens of a store. While it does not answer, those that are known stay as they were."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._records: dict[str, TokenRecord] = {}
        self._used_at_ms: dict[str, int] = {}
        self._looked_at = -LEAST_PAUSE_S
        self._looking = asyncio.Lock()

    def record(self, token_id: str) -> TokenRecord | None:
        return self._records.get(token_id)

    def used(self, token_id: str, at_ms: int) -> None:
        """Remember the use; the poll of the table writes it every few seconds, so that no call waits for that."""
        self._used_at_ms[token_id] = at_ms

    async def look_again(self, token_id: str) -> None:
        """The token is not known: perhaps it was created just now. Returns after a look that began since the call."""
        called_at = time.monotonic()
        async with self._looking:
            if token_id in self._records or self._looked_at > called_at:
                return
            await asyncio.sleep(self._looked_at + LEAST_PAUSE_S - time.monotonic())
            await self._look()

    async def keep_looking(self) -> None:
        """Run for as long as the server does."""
        while True:
            async with self._looking:
                await self._look()
            await self._note_uses()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        self._looked_at = time.monotonic()
        try:
            self._records = by_id(await self._table.read_tokens())
        except StoreUnavailable as error:
            _log.warning("the tokens cannot be read, those that are known stay", extra={"why": str(error)})

    async def _note_uses(self) -> None:
        """Right after a look, which shows what other replicas have noted of the same tokens."""
        used, self._used_at_ms = self._used_at_ms, {}
        news = {token_id: at_ms for token_id, at_ms in used.items() if _is_news(self._records.get(token_id), at_ms)}
        if not news:
            return
        try:
            await self._table.note_token_uses(news)
        except StoreUnavailable as error:
            _log.warning("the last use of tokens cannot be noted", extra={"why": str(error)})


def _is_news(record: TokenRecord | None, used_at_ms: int) -> bool:
    if record is None:
        return False
    return record.last_used_at_ms is None or used_at_ms - record.last_used_at_ms >= NOTE_USE_EVERY_MS
