"""Places where tests kill this process: the moments before and after each commit."""

from __future__ import annotations

import os
import signal

VARIABLE = "ROTA_PIPELINE_DIE_AT"
"""Names the place, and which time it is reached: `bronze: before the commit#2`. For tests of crashes only."""

_reached: dict[str, int] = {}


def breakpoint_at(place: str) -> None:
    """Die here, as if by `kill -9`, if the environment says so."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _reached[place] = _reached.get(place, 0) + 1
    if wanted in (f"{place}#{_reached[place]}", place):
        os.kill(os.getpid(), signal.SIGKILL)
