"""Programs in virtual time end with all their tasks."""

from __future__ import annotations

import asyncio

from rota.testing.virtual_time import run


def test_tasks_made_while_a_program_ends_end_as_well() -> None:
    ended: list[str] = []

    async def say_goodbye() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ended.append("goodbye")

    async def serve() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            asyncio.get_running_loop().create_task(say_goodbye())
            await asyncio.sleep(0)
            ended.append("server")

    async def main() -> None:
        server = asyncio.get_running_loop().create_task(serve())
        await asyncio.sleep(1)
        assert not server.done()

    run(main())

    assert ended == ["server", "goodbye"]
