"""`--config-offset-file`: a worker's position in its configuration, from a file that another program writes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

MAX_OFFSET: Final = 2**63 - 1

_log = logging.getLogger(__name__)


class ConfigOffsetFile:
    """Reads the file at each call, so that a worker needs no restart for a new position."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError if the file has no offset."""
        self._path = path
        self._offset = _read(path)

    def __call__(self) -> int:
        """Return the offset; the former one, with a warning, while the file cannot be read."""
        try:
            self._offset = _read(self._path)
        except ValueError as error:
            _log.warning("the config offset stays %d: %s", self._offset, error)
        return self._offset


def _read(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from error
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_OFFSET)) or int(text) > MAX_OFFSET:
        raise ValueError(f"{path}: a config offset is a number from 0 to {MAX_OFFSET}")
    return int(text)
