"""Where `rota token` keeps tokens: a file, or the store's table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rota.access.tokens import TokenRecord
from rota.protocol.messages import Act
from rota.server.access.token_files import read_tokens, write_tokens


class TokenVault(Protocol):
    """Tokens' records, to be changed one at a time. With a journal, it records the author of each change."""

    async def read(self) -> list[TokenRecord]: ...

    async def add(self, record: TokenRecord, act: Act) -> None: ...

    async def revoke(self, token_id: str, at_ms: int, act: Act) -> None: ...

    async def forget(self, token_id: str, act: Act) -> None: ...


class FileVault:
    """A file of tokens, written anew with each change. It does not record the author."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> list[TokenRecord]:
        return read_tokens(self._path)

    async def add(self, record: TokenRecord, _act: Act) -> None:
        write_tokens(self._path, [*read_tokens(self._path), record])

    async def revoke(self, token_id: str, at_ms: int, _act: Act) -> None:
        records = read_tokens(self._path)
        write_tokens(self._path, [replace(r, revoked_at_ms=at_ms) if r.token_id == token_id else r for r in records])

    async def forget(self, token_id: str, _act: Act) -> None:
        write_tokens(self._path, [record for record in read_tokens(self._path) if record.token_id != token_id])
