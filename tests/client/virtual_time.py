"""Client tests in virtual time: see `rota.testing.virtual_time`."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from rota.runtime.clock import Clock
from rota.testing.virtual_time import VirtualTimeLoop, stand_still

__all__ = ["LoopClock", "VirtualTimeLoop", "in_virtual_time", "stand_still"]

Parameters = ParamSpec("Parameters")

LIMIT_S = 24 * 3_600
"""The longest that a test may take, in its own time."""


class LoopClock(Clock):
    """The event loop's time, so that the coordinator lives in virtual time, too."""

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def now_ms(self) -> int:
        return self.monotonic_ms()


def in_virtual_time(test: Callable[Parameters, Awaitable[None]]) -> Callable[Parameters, None]:
    """Run an async test on a `VirtualTimeLoop`. The pauses that the SDK draws are the same in each run."""

    @functools.wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(*args, **kwargs)

        before = random.getstate()
        random.seed(test.__qualname__)
        try:
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                runner.run(main())
        finally:
            random.setstate(before)

    return run
