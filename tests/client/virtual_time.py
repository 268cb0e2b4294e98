"""An event loop whose clock jumps to the next timer when nobody has anything to do: hours pass in milliseconds."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec

Parameters = ParamSpec("Parameters")


class JumpingSelector(selectors.BaseSelector):
    """Never waits: where a real one would block, time is moved on instead."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._real = selectors.DefaultSelector()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits for somebody else, and no timer is set")
        if not ready and timeout:
            self._advance(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The standard loop on a clock of its own. Only for what needs no threads and no sockets."""

    def __init__(self) -> None:
        self._now = 1_000.0
        super().__init__(JumpingSelector(self._advance))

    def time(self) -> float:
        return self._now

    def _advance(self, seconds: float) -> None:
        self._now += seconds


def stand_still(seconds: float) -> None:
    """Let the process be stopped for so long: whatever is due meanwhile comes late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._advance(seconds)


class LoopClock:
    """The event loop's time, so that the coordinator lives in virtual time, too."""

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def now_ms(self) -> int:
        return self.monotonic_ms()


def in_virtual_time(test: Callable[Parameters, Awaitable[None]]) -> Callable[Parameters, None]:
    """Run an async test on a `VirtualTimeLoop`."""

    @functools.wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(24 * 3_600):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main())

    return run
