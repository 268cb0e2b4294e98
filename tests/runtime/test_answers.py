"""The turns of the event loop in which callers get their answers."""

from __future__ import annotations

import asyncio

from rota.protocol.messages import HeartbeatReply
from rota.replica.ports import Answer
from rota.runtime.answers import ANSWERS_OF_A_TURN, Answers


class Waits:
    """A caller that counts the turn in which it was answered."""

    def __init__(self, turns: list[int], fails: bool = False) -> None:
        self._turns = turns
        self._fails = fails

    def answered(self, _answer: Answer) -> None:
        self._turns[-1] += 1
        if self._fails:
            raise RuntimeError("a bug of the caller")


async def test_answers_are_given_so_many_in_a_turn() -> None:
    answers, turns = Answers(), [0]
    answer = Answer(HeartbeatReply())
    answers.give([(Waits(turns), answer)] * (2 * ANSWERS_OF_A_TURN))
    answers.give([(Waits(turns), answer)])

    while sum(turns) <= 2 * ANSWERS_OF_A_TURN:
        turns.append(0)
        await asyncio.sleep(0)

    assert [number for number in turns if number] == [ANSWERS_OF_A_TURN, ANSWERS_OF_A_TURN, 1]


async def test_a_caller_that_fails_harms_no_other() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["message"]))
    answers, turns = Answers(), [0]

    answers.give([(Waits(turns, fails=True), Answer(HeartbeatReply())), (Waits(turns), Answer(HeartbeatReply()))])
    await asyncio.sleep(0)

    assert turns == [2]
    assert reported == ["a caller failed at its answer"]
