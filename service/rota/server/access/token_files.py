"""API tokens in a file: their digests and scopes as JSON, for servers without a store that others can write to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rota.access.document import InvalidAccess
from rota.access.tokens import TokenRecord
from rota.server.access.files import LOOK_EVERY_S, Reread
from rota.server.private_files import write_private
from rota.wire.token_records import decode_record, encode_record


class TokenFile:
    """The tokens that a file holds now, by their ids."""

    def __init__(self, path: Path, *, look_every_s: float = LOOK_EVERY_S) -> None:
        """Raises `InvalidAccess`. A file that is not there yet holds none."""
        self._file = Reread([path], lambda: by_id(read_tokens(path)), look_every_s=look_every_s)

    def record(self, token_id: str) -> TokenRecord | None:
        return self._file.content.get(token_id)

    async def look_again(self, _token_id: str) -> None:
        """A changed file is noticed anyway."""

    def used(self, _token_id: str, _at_ms: int) -> None:
        """The file may be one that we cannot write to."""


def by_id(records: Sequence[TokenRecord]) -> dict[str, TokenRecord]:
    return {record.token_id: record for record in records}


def read_tokens(path: Path) -> list[TokenRecord]:
    """Raises `InvalidAccess`, which quotes nothing of the file."""
    try:
        documents = json.loads(path.read_text("utf-8"))
        return [decode_record(document) for document in documents["tokens"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidAccess(f"cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidAccess(f"holds no tokens: {type(error).__name__}") from error


def write_tokens(path: Path, records: Sequence[TokenRecord]) -> None:
    """Replace the file at once, readable for its owner alone: a server sees the old tokens or the new ones."""
    document = {"tokens": [encode_record(record) for record in records]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, json.dumps(document, indent=1))
