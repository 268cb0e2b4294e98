"""Sets the wall clock of the process that starts with this folder in `PYTHONPATH`, for tests of clocks that jump.

The file that `STEPPED_CLOCK` names holds how many nanoseconds `time.time` is ahead. The monotonic clock runs on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_AHEAD = Path(os.environ["STEPPED_CLOCK"])
_true_ns = time.time_ns


def _time_ns() -> int:
    return _true_ns() + int(_AHEAD.read_text())


def _time() -> float:
    return _time_ns() / 1e9


time.time_ns, time.time = _time_ns, _time
