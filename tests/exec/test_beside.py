"""What runs beside a block ends with it, and neither takes the other's cancellation or error for its own."""

from __future__ import annotations

import asyncio

import pytest

from rota.agents.exec.run import beside


async def test_what_runs_beside_a_block_ends_with_it() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def follows() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with beside(follows()):
        await began.wait()

    assert ended.is_set()


async def test_a_cancellation_that_comes_while_it_ends_is_not_lost() -> None:
    began, ends = asyncio.Event(), asyncio.Event()

    async def follows() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()
            await asyncio.Event().wait()

    async def leads() -> None:
        async with beside(follows()):
            await began.wait()

    leading = asyncio.create_task(leads())
    await ends.wait()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)

    assert leading.cancelled()


async def test_what_it_raises_is_raised_after_the_block() -> None:
    failed = asyncio.Event()

    async def follows() -> None:
        failed.set()
        raise LookupError("it follows nothing")

    with pytest.raises(LookupError, match="nothing"):
        async with beside(follows()):
            await failed.wait()
