"""Tests of your own work without a server: a coordinator in memory, and virtual time, in which hours pass at once.

    async def fails_over() -> None:
        async with rota.testing.Coordinator() as coordinator:
            first, second = coordinator.connect(), coordinator.connect()
            ...
            coordinator.disconnect(first)
            await asyncio.sleep(30)

    def test_another_process_leads_when_one_is_cut_off() -> None:
        rota.testing.run(fails_over())

The coordinator is the server's own code, and the clients are those of `rota.connect`.
"""

from rota.testing.in_memory import Coordinator
from rota.testing.virtual_time import pause, run

__all__ = ["Coordinator", "pause", "run"]
