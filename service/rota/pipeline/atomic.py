"""Files that are replaced whole: readers see the old content or the new, also after a loss of power."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, value: Any) -> None:
    """Text as it is, anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w") as handle:
        handle.write(value if isinstance(value, str) else json.dumps(value))
        handle.flush()
        os.fsync(handle.fileno())
    beside.replace(path)
