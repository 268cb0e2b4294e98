"""The turns of the event loop in which callers get their answers."""

from __future__ import annotations

import asyncio

from rota.core.replica.ports import Answer
from rota.protocol.messages import HeartbeatReply
from rota.server.runtime.loop import ANSWERS_OF_A_TURN, Answers, Call

ANSWER = Answer(HeartbeatReply())


async def test_answers_are_given_so_many_in_a_turn() -> None:
    answers, turns = Answers(), [0]

    def note_turn(_answer: Answer) -> None:
        turns[-1] += 1

    answers.give([(Call(note_turn), ANSWER)] * (2 * ANSWERS_OF_A_TURN))
    answers.give([(Call(note_turn), ANSWER)])

    while sum(turns) <= 2 * ANSWERS_OF_A_TURN:
        turns.append(0)
        await asyncio.sleep(0)

    assert [number for number in turns if number] == [ANSWERS_OF_A_TURN, ANSWERS_OF_A_TURN, 1]


async def test_a_caller_that_fails_harms_no_other() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["message"]))
    answers, got = Answers(), list[Answer]()

    def fail(_answer: Answer) -> None:
        raise RuntimeError("a bug of the caller")

    answers.give([(Call(fail), ANSWER), (Call(got.append), ANSWER)])
    await asyncio.sleep(0)

    assert got == [ANSWER]
    assert reported == ["a caller failed at its answer"]
