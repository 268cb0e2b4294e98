"""Parked calls end when their time is over, whatever became of those that came before them."""

from __future__ import annotations

import asyncio

from rota.runtime.loop import Parking
from rota.testing.virtual_time import run


class Ended:
    """The calls that were ended, with the seconds that each had been parked since the beginning."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float]] = []
        self.parking = Parking(self._ends)
        self._began_s = asyncio.get_running_loop().time()

    def _ends(self, number: int) -> None:
        self.calls.append((number, round(asyncio.get_running_loop().time() - self._began_s, 2)))


def test_each_call_ends_when_its_own_time_is_over() -> None:
    async def main() -> None:
        ended = Ended()
        ended.parking.park(1, 1_000)
        ended.parking.park(2, 300)
        await asyncio.sleep(0.5)
        ended.parking.park(3, 1_000)
        await asyncio.sleep(5)
        assert ended.calls == [(2, 0.3), (1, 1.0), (3, 1.5)]

    run(main(), most_turns=1_000)


def test_a_call_that_left_its_line_is_not_ended() -> None:
    async def main() -> None:
        ended = Ended()
        line = ended.parking.park(1, 1_000)
        await asyncio.sleep(0.25)
        ended.parking.park(2, 1_000)
        ended.parking.leave(line, 1)
        await asyncio.sleep(5)
        assert ended.calls == [(2, 1.25)]

    run(main(), most_turns=1_000)


def test_a_line_that_was_empty_takes_calls_again() -> None:
    async def main() -> None:
        ended = Ended()
        ended.parking.leave(ended.parking.park(1, 1_000), 1)
        await asyncio.sleep(0.75)
        ended.parking.park(2, 1_000)
        await asyncio.sleep(5)
        ended.parking.park(3, 1_000)
        await asyncio.sleep(5)
        assert ended.calls == [(2, 1.75), (3, 6.75)]

    run(main(), most_turns=1_000)


def test_a_line_is_forgotten_with_its_last_call() -> None:
    async def main() -> None:
        ended = Ended()
        lines = {number: ended.parking.park(number, 1_000 + number % 2) for number in range(4)}
        for number, line in lines.items():
            assert len(ended.parking) == (2 if number < 3 else 1)
            ended.parking.leave(line, number)
        assert len(ended.parking) == 0
        ended.parking.park(4, 1_000)
        await asyncio.sleep(5)
        assert len(ended.parking) == 0
        assert ended.calls == [(4, 1.0)]

    run(main(), most_turns=1_000)


def test_a_call_that_ended_may_leave_its_line() -> None:
    async def main() -> None:
        ended = Ended()
        line = ended.parking.park(1, 1_000)
        await asyncio.sleep(5)
        ended.parking.park(2, 1_000)
        ended.parking.leave(line, 1)
        await asyncio.sleep(5)
        assert ended.calls == [(1, 1.0), (2, 6.0)]

    run(main(), most_turns=1_000)
