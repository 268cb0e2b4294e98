"""The moment a server starts to go away, as the transports see it."""

from __future__ import annotations

import asyncio


class Draining:
    """Set once, never unset. Streams wait for it, `/readyz` looks at it."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    def begin(self) -> None:
        self._begun.set()

    async def wait(self) -> None:
        await self._begun.wait()
