"""Files with secrets: readable by their owner only, whatever the umask, and replaced as a whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_beside(path: Path, text: str) -> Path:
    """Write the text to a new file with mode 0600 that can replace this path; raises `OSError`."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def write_private(path: Path, text: str) -> None:
    """Replace the file at once: a reader sees the old text or the new one. A symbolic link is not followed."""
    written = write_beside(path, text)
    try:
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
