"""Files that are read again when they change, as Kubernetes changes those of a mounted secret; the access file."""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from rota.core.access.document import AccessDocument, InvalidAccess, read_document

LOOK_EVERY_S = 1.0

_log = logging.getLogger(__name__)
Content = TypeVar("Content")


class Reread(Generic[Content]):
    """The current content of files. While changed ones are unusable (half written, say), their previous content."""

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], Content],
        *,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises whatever `read` raises, now; later that is logged, once for each change."""
        self._paths = tuple(paths)
        self._read = read
        self._look_every_s = look_every_s
        self._clock = clock
        self._look_at = clock() + look_every_s
        self._seen = _versions(self._paths)
        self._content = read()

    @property
    def content(self) -> Content:
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + self._look_every_s
            self._look()
        return self._content

    def _look(self) -> None:
        seen = _versions(self._paths)
        if seen == self._seen:
            return
        self._seen = seen
        names = ", ".join(map(str, self._paths))
        try:
            self._content = self._read()
        except (OSError, ValueError) as error:
            _log.error(
                "cannot read a changed file; its previous content stays in use",
                extra={"file": names, "why": str(error)},
            )
        else:
            _log.info("a changed file was read again", extra={"file": names})


def _versions(paths: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    return [_version(path) for path in paths]


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class AccessFile:
    """The access file: `document` is its current content, another object each time that the file has changed."""

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
