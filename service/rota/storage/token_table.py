"""The table of API tokens, for commands beside a server that may be running on the same store."""

from __future__ import annotations

from rota.access.tokens import TokenAct, TokenRecord
from rota.protocol.messages import Act
from rota.storage.migrate import usable
from rota.storage.token_trail import read_acts
from rota.storage.tokens import add_token, forget_token, read_tokens, revoke_token
from rota.storage.urls import parse_store_url


class TokenTable:
    """One short transaction for each call. Raises `StoreRefused` or `StoreUnavailable`."""

    def __init__(self, store_url: str) -> None:
        self._location = parse_store_url(store_url)

    async def read(self) -> list[TokenRecord]:
        async with usable(self._location, writes=False) as connection:
            return await read_tokens(connection)

    async def add(self, record: TokenRecord, act: Act) -> None:
        async with usable(self._location, writes=True) as connection:
            await add_token(connection, record, act)

    async def revoke(self, token_id: str, at_ms: int, act: Act) -> None:
        async with usable(self._location, writes=True) as connection:
            await revoke_token(connection, token_id, at_ms, act)

    async def forget(self, token_id: str, act: Act) -> None:
        async with usable(self._location, writes=True) as connection:
            await forget_token(connection, token_id, act)

    async def acts(self, limit: int) -> list[TokenAct]:
        """Events of tokens, the newest first."""
        async with usable(self._location, writes=False) as connection:
            return await read_acts(connection, limit)
