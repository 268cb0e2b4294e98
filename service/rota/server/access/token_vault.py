"""Where `rota token` keeps tokens: a file, or the store's table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rota.access.tokens import TokenRecord
from rota.server.access.token_files import read_tokens, write_tokens


class TokenVault(Protocol):
    """Tokens' records, to be changed one at a time."""

    async def read(self) -> list[TokenRecord]: ...

    async def add(self, record: TokenRecord) -> None: ...

    async def revoke(self, token_id: str, at_ms: int) -> None: ...

    async def forget(self, token_id: str) -> None: ...


class FileVault:
    """A file of tokens, written anew with each change."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> list[TokenRecord]:
        return read_tokens(self._path)

    async def add(self, record: TokenRecord) -> None:
        write_tokens(self._path, [*read_tokens(self._path), record])

    async def revoke(self, token_id: str, at_ms: int) -> None:
        records = read_tokens(self._path)
        write_tokens(self._path, [replace(r, revoked_at_ms=at_ms) if r.token_id == token_id else r for r in records])

    async def forget(self, token_id: str) -> None:
        write_tokens(self._path, [record for record in read_tokens(self._path) if record.token_id != token_id])
