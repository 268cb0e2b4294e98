"""Elections on a cluster, each with a fenced resource beside it that keeps the history of tokens and holders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from rota.client import Term, connect

DEADLINE_S = 60.0
SESSION_S = 6.0
ASK_AGAIN_S = 5.0
GROUPS = ("busy", "quiet")
CANDIDATES = 3


class Grant(NamedTuple):
    """A term, as its holder noticed it."""

    at_s: float
    token: int
    holder: str
    member_id: str


@dataclass(slots=True)
class Resource:
    """A user's own data, which rejects tokens older than the highest that it has seen, and the writers of each."""

    highest: int = 0
    writes: int = 0
    holders: dict[int, str] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def note_grant(self, token: int, holder: str, member_id: str) -> None:
        """A term begins."""
        if token <= max((former.token for former in self.grants), default=0):
            self.violations.append(f"{holder} was granted {token} after {self.grants}")
        self.grants.append(Grant(monotonic(), token, holder, member_id))

    def write(self, token: int, holder: str) -> None:
        if token < self.highest:
            return
        self.highest = token
        self.writes += 1
        if self.holders.setdefault(token, holder) != holder:
            self.violations.append(f"{holder} writes with {token} as {self.holders[token]} did")


class Elections:
    """Candidates of two groups, each of which writes to its group's resource for as long as it leads."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.resources = {group: Resource() for group in GROUPS}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            self.admin = await stack.enter_async_context(connect(self.urls))
            running = [
                tasks.create_task(self._campaign(group, f"{group}-{number}"))
                for group in GROUPS
                for number in range(CANDIDATES)
            ]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()

    async def _campaign(self, group: str, name: str) -> None:
        resource = self.resources[group]

        async with connect(self.urls, client_id=name) as client:
            async with client.leader(group, session_timeout=SESSION_S) as election:

                async def write(term: Term) -> None:
                    resource.note_grant(term.fencing_token, name, term._member.member_id)
                    while not term.lost.is_set():
                        resource.write(term.fencing_token, name)
                        await asyncio.sleep(0.02)

                await election.run(write)

    async def pass_the_lead(self, group: str, times: int = 1) -> None:
        """Other candidates lead, one after the other. An owner that loses its shard forgets that it was asked."""
        grants = self.resources[group].grants
        for _ in range(times):
            await self.until_complete(group)
            wanted = len(grants) + 1
            while len(grants) < wanted:
                await self.admin.rebalance_group(group, "the test asks for it", step_down=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN_S):
                        await self.until_granted(group, wanted)

    async def until_complete(self, group: str) -> None:
        """All candidates are in the generation: one that is alone is not passed over."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.admin.describe_group(group)
                if found.state == "Stable" and len(found.members) == CANDIDATES:
                    return
                await asyncio.sleep(0.02)

    async def until_granted(self, group: str, times: int) -> float:
        """When a term of the group began for so many times."""
        grants = self.resources[group].grants
        await until(lambda: len(grants) >= times)
        return grants[times - 1].at_s

    def violations(self) -> list[str]:
        return [f"{group}: {each}" for group, resource in self.resources.items() for each in resource.violations]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event shows it
            await asyncio.sleep(0.01)
