"""Client tests in virtual time: see `rota.testing.virtual_time`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from rota.testing import virtual_time
from rota.testing.virtual_time import LoopClock, VirtualTimeLoop, pause

__all__ = ["LoopClock", "VirtualTimeLoop", "in_virtual_time", "pause"]

Parameters = ParamSpec("Parameters")

LIMIT_S = 24 * 3_600
"""The longest that a test may take, in its own time."""


def in_virtual_time(test: Callable[Parameters, Coroutine[Any, Any, None]]) -> Callable[Parameters, None]:
    """Run an async test on a `VirtualTimeLoop`. The pauses that the SDK draws are the same in each run."""

    @functools.wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        virtual_time.run(test(*args, **kwargs), timeout=LIMIT_S, seed=test.__qualname__)

    return run
