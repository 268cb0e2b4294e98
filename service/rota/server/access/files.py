"""Files that are read again by themselves, as Kubernetes changes those of a mounted secret."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

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
