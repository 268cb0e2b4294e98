"""API tokens in the store's table: kept in memory, looked at again every few seconds and when one is not known."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from rota.access.tokens import TokenRecord
from rota.runtime.ports import StoreUnavailable
from rota.server.access.token_files import by_id

LOOK_EVERY_S = 2.0
"""So long a revoked token may go on at a replica."""
LEAST_PAUSE_S = 0.25
"""Between two looks that unknown tokens have caused: whoever makes them up must not load the store."""

_log = logging.getLogger(__name__)


class TokenTable(Protocol):
    """The part of the store that is needed here."""

    async def read_tokens(self) -> list[TokenRecord]: ...


class StoredTokens:
    """The tokens of a store. While it does not answer, those that are known stay as they were."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._records: dict[str, TokenRecord] = {}
        self._looked_at = 0.0
        self._looking = asyncio.Lock()

    def record(self, token_id: str) -> TokenRecord | None:
        return self._records.get(token_id)

    async def look_again(self, token_id: str) -> None:
        """The token is not known: perhaps it was created a moment ago."""
        async with self._looking:
            if token_id not in self._records and time.monotonic() - self._looked_at >= LEAST_PAUSE_S:
                await self._look()

    async def keep_looking(self) -> None:
        """Run for as long as the server does."""
        while True:
            async with self._looking:
                await self._look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        self._looked_at = time.monotonic()
        try:
            self._records = by_id(await self._table.read_tokens())
        except StoreUnavailable as error:
            _log.warning("the tokens cannot be read, those that are known stay", extra={"why": str(error)})
