"""The object store proxy lets the leader write, and no former leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import rota
from examples.object_store_proxy.proxy import create_proxy
from rota.client import Client
from rota.client.transports.http import HttpTransport
from rota.protocol.messages import FenceReply, VerifyFence
from tests.processes.server import Server

pytestmark = pytest.mark.processes


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with rota.connect(server.url) as client:
        yield client


@pytest.fixture
async def proxy(server: Server, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with a_proxy(tmp_path / "objects.db", server.url) as http:
        yield http


def a_proxy(path: Path, rota_url: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_proxy(path, rota_url))
    return httpx.AsyncClient(transport=transport, base_url="http://objects")


async def put(proxy: httpx.AsyncClient, token: str, content: bytes, name: str = "billing/total") -> int:
    answer = await proxy.put(f"/objects/{name}", content=content, headers={"rota-fencing-token": token})
    return answer.status_code


async def a_term_s_token(client: Client, group_id: str = "billing") -> str:
    async with client.leader(group_id) as election:
        async for term in election.terms():
            return await term.signed_token()
    raise AssertionError("nobody was elected")


@pytest.mark.thorough
async def test_a_former_leader_is_rejected_after_a_proxys_restart(
    client: Client, proxy: httpx.AsyncClient, server: Server, tmp_path: Path
) -> None:
    old = await a_term_s_token(client)
    first = await put(proxy, old, b"1")
    new = await a_term_s_token(client)

    before_the_new_one_wrote = await put(proxy, old, b"2")
    second = await put(proxy, new, b"3")
    stale = await put(proxy, old, b"4")
    async with a_proxy(tmp_path / "objects.db", server.url) as restarted:
        stale_again = await put(restarted, old, b"5")
        content = (await restarted.get("/objects/billing/total")).content

    # The store cannot know that the old leader is late until the new one has written. Then it rejects all its writes.
    assert (first, before_the_new_one_wrote, second) == (200, 200, 200)
    assert (stale, stale_again, content) == (412, 412, b"3")


@pytest.mark.thorough
async def test_no_foreign_or_forged_token_opens_anything(client: Client, proxy: httpx.AsyncClient) -> None:
    token = await a_term_s_token(client, "reports")

    assert await put(proxy, "", b"x") == 401
    assert await put(proxy, token, b"x") == 401
    assert await put(proxy, token[:-4] + "AAAA", b"x", "reports/total") == 401
    assert await put(proxy, token, b"x", "reports/total") == 200


@pytest.mark.thorough
async def test_a_token_is_signed_for_its_holder_only(client: Client, server: Server) -> None:
    async with client.leader("billing") as election:
        async for _ in election.terms():
            generation_id, member_id = election.member.generation_id, election.member.member_id
            stale = VerifyFence("default", "billing", generation_id + 1, member_id, sign=True)
            nameless = VerifyFence("default", "billing", generation_id, sign=True)
            transport = HttpTransport([server.url])
            answers = [(await transport.send(request, timeout_ms=5_000)).reply for request in (stale, nameless)]
            await transport.close()
            break

    assert all(isinstance(answer, FenceReply) and not answer.token for answer in answers)
    assert [answer.error.value for answer in answers] == ["ILLEGAL_GENERATION", "INVALID_REQUEST"]
