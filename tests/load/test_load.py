"""Twenty groups of a hundred members behind nginx, with long polls, while members come, go and die: no call fails."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.abuse.attackers import allow_files
from tests.deploy.proxies import Proxy
from tests.load.members import SESSION_TIMEOUT_MS, Member, Tally
from tests.support.ports import free_port
from tests.support.processes import Process, Processes
from tests.support.torture import MINUTES, Row, add_row

pytestmark = [pytest.mark.processes, pytest.mark.slow]

GROUPS = 20
MEMBERS = 100
REPLICAS = 3
SEED = 4_711
EVERY_S = 1.0
"""So often a member leaves and comes back, or dies and is replaced."""
SETTLE_S = 120.0 + SESSION_TIMEOUT_MS / 1000

FAILED = re.compile(r'rota_requests_total\{code="COORDINATOR_NOT_AVAILABLE",operation="(?!readyz")')

SECONDS = [
    pytest.param(20, GROUPS, id="20s"),
    # `make torture` does it for as long as it is asked to, and has a line of it in its table. Beside kills and
    # simulations on the same two cores, so many members do not always agree in time.
    pytest.param(round(60 * MINUTES), GROUPS, marks=[pytest.mark.torture, pytest.mark.alone], id="torture"),
]


class Fleet:
    """The members of some groups, and when each group last agreed."""

    def __init__(self, port: int, groups: int) -> None:
        self.tally = Tally()
        self._port = port
        self._members: dict[str, list[Member]] = {f"group-{number}": [] for number in range(groups)}
        self._moved = asyncio.Event()

    @property
    def members(self) -> list[Member]:
        return [member for group in self._members.values() for member in group]

    def fill(self, size: int) -> None:
        """Let each group have so many members from now on."""
        for group_id, group in self._members.items():
            while len(group) < size:
                group.append(Member(self._port, group_id, self.tally, lambda _: self._moved.set()))
                group[-1].live()

    async def provoke(self, chance: random.Random) -> None:
        """One member leaves, or dies without a word, and another comes."""
        group = chance.choice(list(self._members.values()))
        member = group.pop(chance.randrange(len(group)))
        await (member.die() if chance.random() < 0.3 else member.leave())
        self.fill(MEMBERS)

    async def all_agree(self) -> None:
        """Return once in each group all hold a share of one generation; raise what ended a member."""
        async with asyncio.timeout(SETTLE_S):
            while True:
                self._raise_what_failed()
                if all(self._agrees(group) for group in self._members.values()):
                    return
                self._moved.clear()
                await asyncio.wait([asyncio.ensure_future(self._moved.wait())], timeout=1.0)

    async def end(self) -> None:
        await asyncio.gather(*(member.die() for member in self.members))

    def _agrees(self, group: Sequence[Member]) -> bool:
        generations = {member.generation_id for member in group}
        return len(generations) == 1 and 0 not in generations

    def _raise_what_failed(self) -> None:
        for member in self.members:
            if member.life is not None and member.life.done():
                member.life.result()


@pytest.mark.parametrize(("seconds", "groups"), SECONDS)
async def test_no_call_fails_while_members_come_go_and_die(
    seconds: int, groups: int, processes: Processes, postgres_dsn: str, tmp_path: Path
) -> None:
    allow_files(2 * groups * MEMBERS + 1_000)
    assert processes.rota("db", "upgrade", "--store", postgres_dsn).wait_for_exit() == 0
    ports = [free_port() for _ in range(REPLICAS)]
    replicas = [serve(processes, postgres_dsn, port) for port in ports]
    for replica, port in zip(replicas, ports, strict=True):
        replica.wait_for_url(f"http://127.0.0.1:{port}/readyz")
    proxy = Proxy("nginx", processes, tmp_path, http=ports, grpc=ports)
    fleet, chance, provoked = Fleet(proxy.http, groups), random.Random(SEED), 0

    fleet.fill(MEMBERS)
    await fleet.all_agree()
    end = monotonic() + seconds
    while monotonic() < end:
        await fleet.provoke(chance)
        provoked += 1
        await asyncio.sleep(EVERY_S)
    await fleet.all_agree()
    await fleet.end()

    shown = fleet.tally
    unexpected = sum(shown.unexpected().values())
    print(f"{sum(shown.answers.values())} calls, {provoked} provocations, {shown.shares} shares, {dict(shown.answers)}")
    if seconds == round(60 * MINUTES):
        add_row(Row("load", seconds / 60, 1, provoked, len(shown.generations), shown.accepted, 0, 0, unexpected, SEED))
    assert unexpected == 0, shown.unexpected()
    assert provoked >= seconds / 10
    assert await failed_calls(ports) == 0


def serve(processes: Processes, store: str, port: int) -> Process:
    """One replica of three."""
    environment = {"ROTA_LIMITS__INITIAL_REBALANCE_DELAY_MS": "500", "ROTA_LOG_LEVEL": "warning"}
    return processes.rota("serve", "--store", store, "--http", f"127.0.0.1:{port}", env=environment)


async def failed_calls(ports: Sequence[int]) -> float:
    """Calls of members that the replicas themselves count as not answered because of them."""
    failed = 0.0
    async with httpx.AsyncClient(trust_env=False) as client:
        for port in ports:
            lines = (await client.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines()
            failed += sum(float(line.split()[-1]) for line in lines if FAILED.match(line))
    return failed
