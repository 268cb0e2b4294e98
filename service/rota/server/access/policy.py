"""The access file: rules, quotas and issuers, in TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path

from rota.access.document import AccessDocument, InvalidAccess, read_document
from rota.server.access.files import LOOK_EVERY_S, Reread


class AccessFile:
    """`document` is what the file says now; it is another object each time that the file has changed."""

    def __init__(self, path: Path, *, look_every_s: float = LOOK_EVERY_S) -> None:
        """Raises `InvalidAccess`."""
        self._file = Reread([path], lambda: read_access_file(path), look_every_s=look_every_s)

    @property
    def document(self) -> AccessDocument:
        return self._file.content


def read_access_file(path: Path) -> AccessDocument:
    """Raises `InvalidAccess`, which says where and why."""
    try:
        return read_document(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise InvalidAccess(f"cannot be read: {error.strerror}") from error
    except (UnicodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidAccess(f"is not TOML: {error}") from error
