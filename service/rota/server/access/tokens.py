"""The API tokens that a server accepts: those of a file, and those of the store's table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from rota.core.access.document import InvalidAccess
from rota.core.access.tokens import Presented, TokenRecord, refusal_of
from rota.core.replica.ports import StoreUnavailable
from rota.protocol.messages import Act
from rota.server.access.files import LOOK_EVERY_S, Reread
from rota.server.private_files import write_private

LEAST_PAUSE_S = 0.25
"""Between reads that unknown tokens cause: all that arrive in this time share one, so they do not load the store."""
NOTE_USE_EVERY_MS = 300_000
"""Resolution of a token's stored last use: so there is one write for a token, not one for each replica."""

_log = logging.getLogger(__name__)


class TokenTable(Protocol):
    """The part of the store that is needed here."""

    async def read_tokens(self) -> list[TokenRecord]: ...

    async def note_token_uses(self, used_at_ms: Mapping[str, int]) -> None: ...


class Tokens:
    """The tokens of a file and of a store's table, in memory. A changed file is read again.

    The table is read every second, which is how long a revoked token may still be accepted, and for an unknown token.
    While the store does not answer, the known tokens stay as they were.
    """

    def __init__(
        self, table: TokenTable | None = None, file: Path | None = None, *, look_every_s: float = LOOK_EVERY_S
    ) -> None:
        """Raises `InvalidAccess` for a file without tokens. A file that does not exist yet has none."""
        read = [] if file is None else [Reread([file], lambda: _by_id(read_tokens(file)), look_every_s=look_every_s)]
        self._files = read
        self._table = table
        self._stored: dict[str, TokenRecord] = {}
        self._used_at_ms: dict[str, int] = {}
        self._read_at = -LEAST_PAUSE_S
        self._reading = asyncio.Lock()

    def record(self, token_id: str) -> TokenRecord | None:
        """The token's record in the file, otherwise in the table."""
        found = (file.content.get(token_id) for file in self._files)
        return next(filter(None, found), None) or self._stored.get(token_id)

    def judge(self, presented: Presented) -> tuple[TokenRecord | None, str]:
        """The token's record, and why it is not accepted; if it is, the reason is empty, and its use is noted.

        The uses are written after the next read of the table, so that no call waits for that.
        """
        now_ms, token_id = int(time.time() * 1000), presented.token_id
        record = self.record(token_id)
        refusal = refusal_of(record, presented, now_ms)
        if not refusal and token_id in self._stored:
            self._used_at_ms[token_id] = now_ms
        return record, refusal

    async def read_again(self, token_id: str) -> None:
        """Read the table for an unknown token, which may be new. Returns after a read that began since the call."""
        called_at = time.monotonic()
        if self._table is not None and self.record(token_id) is None:
            async with self._reading:
                if self.record(token_id) is None and self._read_at <= called_at:
                    await asyncio.sleep(self._read_at + LEAST_PAUSE_S - time.monotonic())
                    await self._read(self._table)

    async def keep_reading(self) -> None:
        """Run for as long as the server does."""
        while self._table is not None:
            async with self._reading:
                await self._read(self._table)
            await self._note_uses(self._table)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _read(self, table: TokenTable) -> None:
        self._read_at = time.monotonic()
        try:
            self._stored = _by_id(await table.read_tokens())
        except StoreUnavailable as error:
            _log.warning("the tokens cannot be read, those that are known stay", extra={"why": str(error)})

    async def _note_uses(self, table: TokenTable) -> None:
        """Right after a read, which shows the uses of the same tokens that other replicas have noted."""
        used, self._used_at_ms = self._used_at_ms, {}
        unnoted = {
            token_id: at_ms
            for token_id, at_ms in used.items()
            if (record := self._stored.get(token_id)) is not None
            and (record.last_used_at_ms is None or at_ms - record.last_used_at_ms >= NOTE_USE_EVERY_MS)
        }
        try:
            if unnoted:
                await table.note_token_uses(unnoted)
        except StoreUnavailable as error:
            _log.warning("the last use of tokens cannot be noted", extra={"why": str(error)})


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


class _File(msgspec.Struct):
    tokens: list[TokenRecord]


def read_tokens(path: Path) -> list[TokenRecord]:
    """Raises `InvalidAccess`, which quotes nothing of the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).tokens
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidAccess(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidAccess(f"holds no tokens: {type(error).__name__}") from None


def write_tokens(path: Path, records: Sequence[TokenRecord]) -> None:
    """Replace the file at once, readable for its owner alone: a server sees the old tokens or the new ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, msgspec.json.format(msgspec.json.encode(_File([*records])), indent=1).decode())


def _by_id(records: Sequence[TokenRecord]) -> dict[str, TokenRecord]:
    return {record.token_id: record for record in records}
