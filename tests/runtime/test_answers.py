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
