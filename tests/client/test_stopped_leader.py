"""A leader that is stopped (SIGSTOP) past its session and goes on: it writes nothing more, and notices at once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import rota
from tests.client.writer import NAME
from tests.processes.server import Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


@dataclass
class FencedResource:
    """The user's own data: it takes no token that is older than one it has seen."""

    port: int = 0
    highest: int = 0
    answers: list[tuple[int, str]] = field(default_factory=list)

    def write(self, token: int) -> str:
        answer = "taken" if token >= self.highest else "refused"
        self.highest = max(self.highest, token)
        self.answers.append((token, answer))
        return answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(f"{self.write(int(line))}\n".encode())
        writer.close()


@asynccontextmanager
async def a_fenced_resource() -> AsyncIterator[FencedResource]:
    resource = FencedResource()
    server = await asyncio.start_server(resource.serve, "127.0.0.1", 0)
    resource.port = server.sockets[0].getsockname()[1]
    async with server:
        yield resource


@pytest.mark.thorough
async def test_a_leader_stopped_past_its_session_writes_nothing_more(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    await asyncio.to_thread(server.start_and_wait)
    async with a_fenced_resource() as resource, rota.connect(server.url) as client:
        command = (sys.executable, "-m", "tests.client.writer", server.url, str(resource.port))
        stopped = processes.start(*command, cwd=ROOT)
        await asyncio.to_thread(stopped.wait_for_line, r"^begins with token \d+$")
        async with client.leader(NAME, session_timeout=60.0) as election:
            await election.member.wait_assigned()
            stopped.pause()
            term = await anext(election.terms())
            # Once the other is back, the same term goes on with the token of another generation.
            token = term.fencing_token
            assert resource.write(token) == "taken"

            resumed_at = time.monotonic()
            stopped.resume()
            cancelled = await asyncio.to_thread(stopped.wait_for_line, r"^cancelled at ([\d.]+)$")
            late = await asyncio.to_thread(stopped.wait_for_line, r"^a late write is (\w+)$")

            assert late[1] == "refused"
            since = resource.answers.index((token, "taken"))
            assert {answer for older, answer in resource.answers[since:] if older < token} == {"refused"}
            assert term.is_valid
            print(f"its body was cancelled {1000 * (float(cancelled[1]) - resumed_at):.1f} ms after it went on")
        await asyncio.to_thread(stopped.kill9)
