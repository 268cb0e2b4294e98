"""Members over HTTP that do what the protocol asks of them at once, and wait in long polls for what comes next."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.connection import Connection
from bench.setting import NAMESPACE, WAIT_MS

METADATA = b64encode(bytes(60)).decode()
SHARE = b64encode(bytes(40)).decode()
DEADLINE_S = 60.0


class Crowd:
    """The members of one group. Knows which generation each of them holds a share of."""

    def __init__(self, group_id: str, port: int, token: str = "") -> None:
        self.group_id = group_id
        self.token = token
        self.path = f"/v1/namespaces/{NAMESPACE}/groups/{group_id}"
        self.port = port
        self.members: list[CrowdMember] = []
        self.messages = 0
        """How many the members sent."""
        self._holding: Counter[int] = Counter()
        self._agreed = asyncio.Event()

    async def grow(self, size: int) -> None:
        """Connect until there are `size` members; they do not join yet."""
        while len(self.members) < size:
            self.members.append(CrowdMember(self, await Connection.open(self.port, self.token)))
        self._agreed.clear()

    async def start(self, members: Sequence[CrowdMember]) -> None:
        """Let these live from now on."""
        for member in members:
            member.start()

    async def last_leaves(self) -> None:
        """The newest member leaves the group; returns when the service has said yes."""
        member = self.members.pop()
        self._agreed.clear()
        await member.leave()

    async def all_hold_one_generation(self) -> None:
        """Return when every member has its share of the same generation; raise what ended a member."""
        agreed = asyncio.ensure_future(self._agreed.wait())
        lives = [member.life for member in self.members if member.life is not None]
        done, _ = await asyncio.wait((agreed, *lives), timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        for ended in done - {agreed}:
            ended.result()
        if not agreed.done():
            agreed.cancel()
            raise TimeoutError(f"they hold {self._holding} after {DEADLINE_S} s")

    async def all_live(self) -> None:
        """Fail unless each of them is a member of its generation; none may be in the middle of a heartbeat."""
        beats = [{"member_id": member.member_id, "generation_id": member.generation_id} for member in self.members]
        connection = await Connection.open(self.port, self.token)
        _, answer = await connection.post(f"{self.path}/heartbeat", {"members": beats})
        connection.close()
        assert {each["error"] for each in answer["members"]} == {"NONE"}, answer

    def moved(self, former: int, generation_id: int) -> None:
        """A member gave up its share of `former` or got one of `generation_id`; 0 is none."""
        self._holding[former] -= 1
        self._holding[generation_id] += 1
        if generation_id and self._holding[generation_id] == len(self.members):
            self._agreed.set()
        else:
            self._agreed.clear()

    async def disperse(self) -> None:
        """End all members without a word."""
        await asyncio.gather(*(member.end() for member in self.members))


class CrowdMember:
    """One member on one connection: join, sync, then heartbeats that park until there is news."""

    def __init__(self, crowd: Crowd, connection: Connection) -> None:
        self.member_id = ""
        self.generation_id = 0
        self._crowd = crowd
        self._connection = connection
        self.life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Live, as a task that `end` awaits."""
        self.life = asyncio.create_task(self._live())

    async def end(self) -> None:
        if self.life is not None:
            self.life.cancel()
            await asyncio.gather(self.life, return_exceptions=True)
        self._connection.close()

    async def leave(self) -> None:
        """Leave on a connection of its own, because that of the member is busy with its heartbeat."""
        connection = await Connection.open(self._crowd.port, self._crowd.token)
        status, answer = await connection.post(
            f"{self._crowd.path}/leave", {"members": [{"member_id": self.member_id}]}
        )
        assert status == 200, answer
        connection.close()
        await self.end()
        self._hold(0)

    async def enter(self) -> None:
        """Join and sync until this member holds a share."""
        while True:
            joined = await self._join()
            status, synced = await self._sync(joined)
            if status == 200:
                self._hold(joined["generation_id"])
                return
            assert synced["code"] == "REBALANCE_IN_PROGRESS", synced

    async def _live(self) -> None:
        while True:
            await self.enter()
            while await self._nothing_new():
                pass
            self._hold(0)

    async def _nothing_new(self) -> bool:
        document = {"member_id": self.member_id, "generation_id": self.generation_id, "wait_ms": WAIT_MS}
        status, answer = await self._post("heartbeat", document)
        assert status == 200 or answer["code"] == "REBALANCE_IN_PROGRESS", answer
        return status == 200

    async def _join(self) -> dict[str, Any]:
        while True:
            document = {
                "member_id": self.member_id,
                "client_id": "crowd",
                "protocol_type": "worker",
                "protocols": [{"name": "range", "metadata": METADATA}],
                "wait_ms": WAIT_MS,
            }
            status, joined = await self._post("join", document)
            if status == 200:
                answer: dict[str, Any] = joined
                return answer
            assert status in (202, 428), joined
            self.member_id = joined["member_id"]

    async def _sync(self, joined: dict[str, Any]) -> tuple[int, Any]:
        document = {"member_id": self.member_id, "generation_id": joined["generation_id"], "wait_ms": WAIT_MS}
        if joined["leader_id"] == self.member_id:
            document["assignments"] = [
                {"member_id": member["member_id"], "assignment": SHARE} for member in joined["members"]
            ]
        status = 202
        while status == 202:
            status, synced = await self._post("sync", document)
        return status, synced

    async def _post(self, call: str, document: dict[str, Any]) -> tuple[int, Any]:
        self._crowd.messages += 1
        return await self._connection.post(f"{self._crowd.path}/{call}", document)

    def _hold(self, generation_id: int) -> None:
        former, self.generation_id = self.generation_id, generation_id
        self._crowd.moved(former, generation_id)
