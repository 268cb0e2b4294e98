"""Members over HTTP as any client might be written: join, sync, and heartbeats that wait for news; all is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.connection import Connection

SESSION_TIMEOUT_MS = 15_000
WAIT_MS = 30_000

Document = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """What all members were answered, by call, status and code, and how often one held a share of a new generation."""

    answers: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    shares: int = 0
    generations: set[tuple[str, int]] = field(default_factory=set)
    """The group of which the member held a share."""

    @property
    def accepted(self) -> int:
        """Answers that said yes."""
        return sum(count for (_, status, _), count in self.answers.items() if status == 200)

    def unexpected(self) -> dict[tuple[str, int, str], int]:
        """Answers that a member of a rebalancing group does not get."""
        return {answer: count for answer, count in self.answers.items() if answer not in EXPECTED}


EXPECTED = {
    *((call, 200, "") for call in ("join", "sync", "heartbeat", "leave")),
    *((call, 202, "") for call in ("join", "sync")),
    ("join", 428, "MEMBER_ID_REQUIRED"),
    *((call, 409, "REBALANCE_IN_PROGRESS") for call in ("join", "sync", "heartbeat")),
    *((call, 412, "ILLEGAL_GENERATION") for call in ("sync", "heartbeat")),
}
"""No member is ever unknown, fenced, throttled, or without a coordinator."""


class Member:
    """One member on one connection, from `live` to `leave` or `die`."""

    def __init__(self, port: int, group_id: str, tally: Tally, holds: Callable[[Member], None]) -> None:
        self.member_id = ""
        self.generation_id = 0
        """Of the share that it holds, 0 while it has none."""
        self._port = port
        self._path = f"/v1/namespaces/load/groups/{group_id}"
        self._tally = tally
        self._holds = holds
        self._connection: Connection | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def life(self) -> asyncio.Task[None] | None:
        """The task that `live` started."""
        return self._life

    def live(self) -> None:
        """Live, as a task that `leave` or `die` awaits."""
        self._life = asyncio.create_task(self._live())

    async def die(self) -> None:
        """Without a word: its session has to run out."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
        self.generation_id = 0

    async def leave(self) -> None:
        """Die, and say so."""
        await self.die()
        self._connection = await Connection.open(self._port)
        await self._post("leave", {"members": [{"member_id": self.member_id}]})
        self._connection.close()

    async def _live(self) -> None:
        self._connection = await Connection.open(self._port)
        while True:
            joined = await self._join()
            if joined is not None and await self._sync(joined):
                self._hold(joined["generation_id"])
                while await self._heartbeat():
                    pass
                self.generation_id = 0

    async def _join(self) -> Document | None:
        protocols = [{"name": "range", "metadata": "bG9hZA=="}]
        body = {"protocol_type": "worker", "protocols": protocols, "session_timeout_ms": SESSION_TIMEOUT_MS}
        status, answer = await self._post("join", {"member_id": self.member_id, "wait_ms": WAIT_MS, **body})
        self.member_id = answer.get("member_id", self.member_id)
        return answer if status == 200 else None

    async def _sync(self, joined: Document) -> bool:
        body: Document = {"member_id": self.member_id, "generation_id": joined["generation_id"], "wait_ms": WAIT_MS}
        share = {"assignment": "c2hhcmU="}
        body["assignments"] = [{"member_id": member["member_id"], **share} for member in joined["members"]]
        status = 202
        while status == 202:
            status, _ = await self._post("sync", body)
        return status == 200

    async def _heartbeat(self) -> bool:
        ids = {"member_id": self.member_id, "generation_id": self.generation_id}
        status, _ = await self._post("heartbeat", {**ids, "wait_ms": WAIT_MS})
        return status == 200

    def _hold(self, generation_id: int) -> None:
        self.generation_id = generation_id
        self._tally.shares += 1
        self._tally.generations.add((self._path, generation_id))
        self._holds(self)

    async def _post(self, call: str, document: Document) -> tuple[int, Document]:
        assert self._connection is not None
        status, answer = await self._connection.post(f"{self._path}/{call}", document)
        self._tally.answers[call, status, answer.get("code", "")] += 1
        return status, answer
