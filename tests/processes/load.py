"""Clients that speak plain HTTP to a server that is killed under them, and write down its answers."""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.processes.history import AckedJoin, AckedLeave, AckedSync, Event, History, Partition, Progress
from tests.support.processes import Process

Document = dict[str, Any]

SESSION_TIMEOUT_MS = 20_000
REBALANCE_TIMEOUT_MS = 20_000
_WAIT_MS = 2_000
_READ_DEADLINE_S = 30.0
_PAUSE_S = 0.05
_TOPIC = "work"


class NoAnswer(Exception):
    """The server went away before it answered: what came of the request is unknown."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client stands: its id in the group, and the generation it is in."""

    member_id: str
    generation_id: int
    members: tuple[str, ...]
    """The members to assign to; empty for followers."""


class Load:
    """Some clients in some groups. They work while the gate is open, and are still once the server is dead."""

    def __init__(self, url: str, seed: int, *, groups: int = 3, clients_per_group: int = 3) -> None:
        self.history = History()
        self.http = httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False)
        self.gate = asyncio.Event()
        self._changed = asyncio.Condition()
        self._in_flight = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.clients = [
            Client(self, f"group-{group}", number, random.Random(f"{seed}/{group}/{number}"))
            for group in range(groups)
            for number in range(clients_per_group)
        ]

    @property
    def group_ids(self) -> list[str]:
        return sorted({client.group_id for client in self.clients})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the clients for as long as the block lasts; what one of them finds wrong is raised."""
        tasks = [asyncio.create_task(client.run()) for client in self.clients]
        self._tasks = tasks
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self.http.aclose()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def until_facts(self, more: int, server: Process, deadline_s: float = 60.0) -> None:
        """Open the gate and return once `more` facts were acknowledged; fail if the server ends by itself."""
        wanted = self.history.facts + more
        self.gate.set()
        async with asyncio.timeout(deadline_s), self._changed:
            await self._changed.wait_for(lambda: self.history.facts >= wanted or self._failed() or not server.running)
        assert server.running, f"nobody killed the server, but it ended with {server.exit_code}"

    async def until_still(self, deadline_s: float = 60.0) -> None:
        """Close the gate and return once no request is under way."""
        self.gate.clear()
        async with asyncio.timeout(deadline_s), self._changed:
            await self._changed.wait_for(lambda: not self._in_flight)

    async def exchange(self, method: str, path: str, body: Document | None = None) -> tuple[int, Document]:
        """One call: status and document. `NoAnswer` if the server is gone, also after it began to answer."""
        await self.gate.wait()
        self._in_flight += 1
        try:
            response = await self.http.request(method, f"/v1/namespaces/default{path}", json=body)
            if response.status_code in (421, 503):
                await asyncio.sleep(_PAUSE_S)
            return response.status_code, response.json()
        except httpx.TransportError as error:
            self.history.unanswered += 1
            raise NoAnswer from error
        finally:
            self._in_flight -= 1
            async with self._changed:
                self._changed.notify_all()

    def _failed(self) -> bool:
        return any(task.done() for task in self._tasks)


class Client:
    """One member: joins, syncs, heartbeats and commits; leaves or rejoins now and then, as its seed wills."""

    def __init__(self, load: Load, group_id: str, number: int, chance: random.Random) -> None:
        self.group_id = group_id
        self._load = load
        self._history = load.history
        self._chance = chance
        # The first client of each group is a static member.
        self._instance_id = f"static-{group_id}" if number == 0 else None
        self._partition: Partition = (group_id, number)
        self._history.progress[self._partition] = Progress()
        self._next_offset = 1
        self._member_id = ""
        self._metadata = 0

    async def run(self) -> None:
        """Live until cancelled."""
        while True:
            try:
                place = await self._join()
                if place is not None and await self._sync(place):
                    await self._work(place)
            except NoAnswer:
                if self._instance_id and self._chance.random() < 0.5:
                    self._member_id = ""  # As a static member that was restarted, too.

    async def _join(self) -> Place | None:
        at_least = self._history.highest.get(self.group_id, 0)
        protocol = {"name": "plain", "metadata": _base64(f"{self._partition} {self._metadata}")}
        status, document = await self._call(
            "join",
            protocol_type="worker",
            protocols=[protocol],
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            wait_ms=_WAIT_MS,
        )
        if status == 428 or (status == 202 and not self._member_id):
            self._member_id = document["member_id"]
        elif status in (404, 412):
            self._member_id = ""  # Unknown, or fenced by a join of ours that was never answered.
        if status != 200:
            assert status in (202, 404, 409, 412, 421, 428, 503), document
            return None
        self._member_id = document["member_id"]
        return self._joined(document, at_least)

    def _joined(self, document: Document, at_least: int) -> Place:
        members = tuple(member["member_id"] for member in document["members"])
        join = AckedJoin(
            self.group_id,
            document["member_id"],
            document["generation_id"],
            document["leader_id"],
            frozenset(members),
            at_least,
            document["revision"],
            document["epoch"],
        )
        self._history.joined(join)
        return Place(join.member_id, join.generation_id, () if document["skip_assignment"] else members)

    async def _sync(self, place: Place) -> bool:
        """Sync until there is an assignment (True) or the generation is over (False)."""
        assignments = self._assignments(place)
        while True:
            body = [{"member_id": to, "assignment": what} for to, what in assignments.items()]
            status, document = await self._call(
                "sync", generation_id=place.generation_id, assignments=body, wait_ms=_WAIT_MS
            )
            if status == 200:
                self._synced(place, document)
                return True
            assert status in (202, 404, 409, 412, 421, 503), document
            if status not in (202, 421, 503):
                return False

    def _assignments(self, place: Place) -> dict[str, str]:
        """The leader's: others in each generation, the same each time they are sent in one."""
        if not place.members:
            return {}
        nonce = self._chance.random()
        made = {member_id: _base64(f"{place.generation_id} {member_id} {nonce}") for member_id in place.members}
        return self._history.sent.setdefault((self.group_id, place.generation_id), made)

    def _synced(self, place: Place, document: Document) -> None:
        revision = document["revision"]
        self._history.saw(self.group_id, revision)
        self._history.syncs.append(
            AckedSync(self.group_id, place.member_id, document["generation_id"], document["assignment"], revision)
        )

    async def _work(self, place: Place) -> None:
        """Heartbeat and commit for as long as the generation lasts, or until something else comes to mind."""
        for _ in range(self._chance.randint(3, 25)):
            status, document = await self._call("heartbeat", generation_id=place.generation_id)
            if status == 200:
                self._history.saw(self.group_id, document["revision"])
            if status in (404, 409, 412):
                return
            await self._commit(place)
        if self._chance.random() < 0.5:
            await self._leave(place)
        else:
            self._metadata += 1

    async def _commit(self, place: Place) -> None:
        progress = self._history.progress[self._partition]
        offset, self._next_offset = self._next_offset, self._next_offset + 1
        progress.unknown.add(offset)
        entry = {"topic": _TOPIC, "partition": self._partition[1], "offset": offset}
        status, document = await self._call("offsets", generation_id=place.generation_id, offsets=[entry])
        if status == 200:
            assert [result["error"] for result in document["partitions"]] == ["NONE"], document
            self._history.committed(self._partition, offset)
            self._history.saw(self.group_id, document["revision"])
        elif status not in (421, 503):
            progress.unknown.discard(offset)
            progress.refused.add(offset)

    async def _leave(self, place: Place) -> None:
        leaving = {"member_id": place.member_id, "reason": "as the seed wills"}
        status, document = await self._load.exchange("POST", f"/groups/{self.group_id}/leave", {"members": [leaving]})
        if status == 200 and document["members"][0]["error"] == "NONE":
            self._history.saw(self.group_id, document["revision"])
            self._history.leaves.append(AckedLeave(self.group_id, place.member_id, document["revision"]))
            self._member_id = ""

    async def _call(self, operation: str, **fields: Any) -> tuple[int, Document]:
        identity = {"member_id": self._member_id, "group_instance_id": self._instance_id}
        return await self._load.exchange("POST", f"/groups/{self.group_id}/{operation}", {**identity, **fields})


async def read_journal(http: httpx.AsyncClient, shard_id: int) -> list[Event]:
    """The whole journal of a shard, as the server returns it."""
    events: list[Event] = []
    while True:
        after = events[-1]["revision"] if events else 0
        answer = await _read(http, "/v1/events", shard=shard_id, after=after, limit=1_000)
        page = answer.raise_for_status().json()["events"]
        if not page:
            return events
        events += page


async def read_offsets(http: httpx.AsyncClient, group_id: str) -> dict[Partition, int]:
    """What a group has committed."""
    answer = await _read(http, f"/v1/namespaces/default/groups/{group_id}/offsets")
    if answer.status_code == httpx.codes.NOT_FOUND:
        return {}
    return {(group_id, entry["partition"]): entry["offset"] for entry in answer.raise_for_status().json()["offsets"]}


async def _read(http: httpx.AsyncClient, path: str, **query: int) -> httpx.Response:
    """The answer to a GET, once the server has one: on a busy machine it may have to load a shard again."""
    async with asyncio.timeout(_READ_DEADLINE_S):
        while True:
            answer = await http.get(path, params=query)
            if answer.status_code not in (421, 503):
                return answer
            await asyncio.sleep(_PAUSE_S)


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
