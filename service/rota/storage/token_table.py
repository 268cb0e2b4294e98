"""The table of API tokens, for commands beside a server that may be running on the same store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection

from rota.access.tokens import TokenAct, TokenRecord
from rota.protocol.messages import Act
from rota.replica.ports import StoreRefused
from rota.storage.engine import single_engine
from rota.storage.errors import UPGRADE_HINT, store_errors
from rota.storage.migrate import read_status
from rota.storage.token_trail import read_acts
from rota.storage.tokens import add_token, forget_token, read_tokens, revoke_token
from rota.storage.urls import SqliteLocation, parse_store_url


class TokenTable:
    """One short transaction for each call. Raises `StoreRefused` or `StoreUnavailable`."""

    def __init__(self, store_url: str) -> None:
        self._location = parse_store_url(store_url)

    async def read(self) -> list[TokenRecord]:
        async with self._transaction(writes=False) as connection:
            return await read_tokens(connection)

    async def add(self, record: TokenRecord, act: Act) -> None:
        async with self._transaction(writes=True) as connection:
            await add_token(connection, record, act)

    async def revoke(self, token_id: str, at_ms: int, act: Act) -> None:
        async with self._transaction(writes=True) as connection:
            await revoke_token(connection, token_id, at_ms, act)

    async def forget(self, token_id: str, act: Act) -> None:
        async with self._transaction(writes=True) as connection:
            await forget_token(connection, token_id, act)

    async def acts(self, limit: int) -> list[TokenAct]:
        """Events of tokens, the newest first."""
        async with self._transaction(writes=False) as connection:
            return await read_acts(connection, limit)

    @asynccontextmanager
    async def _transaction(self, *, writes: bool) -> AsyncIterator[AsyncConnection]:
        if isinstance(self._location, SqliteLocation) and not self._location.path.exists():
            raise StoreRefused(f"there is no store at {self._location}: {UPGRADE_HINT}")
        with store_errors():
            engine = single_engine(self._location, writes=writes)
            try:
                async with engine.begin() as connection:
                    status = await connection.run_sync(read_status)
                    if not status.usable:
                        raise StoreRefused(f"the schema of {self._location} is not this release's: {UPGRADE_HINT}")
                    yield connection
            finally:
                await engine.dispose()
