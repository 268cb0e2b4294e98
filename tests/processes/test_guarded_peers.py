"""Rules hold for users of the machine: the port of the peers is no way around them, though it is on loopback."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.protocol.messages import ListGroups
from rota.server.access.tokens import write_tokens
from rota.server.peer.messages import EXCHANGE, pack_asked
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes


@pytest.fixture
def store(processes: Processes, postgres_dsn: str) -> str:
    assert processes.rota("db", "upgrade", "--store", postgres_dsn).wait_for_exit() == 0
    return postgres_dsn


@pytest.fixture
def operator(tmp_path: Path) -> dict[str, str]:
    """The headers of one, with its token in a file beside the rules."""
    token = mint(b"o" * RANDOM_BYTES)
    presented = parse(token)
    scope = Rule("scope of operator", ("token:operator",), ROLES["operator"])
    write_tokens(tmp_path / "tokens.json", [TokenRecord(presented.token_id, "operator", presented.digest, (scope,))])
    (tmp_path / "access.toml").write_text("")
    return {"authorization": f"Bearer {token}"}


def serve(processes: Processes, store: str, folder: Path, port: int, *options: str) -> Process:
    common = ("--http", f"127.0.0.1:{port}", "--shard-count", "8", "--log-format", "text")
    rules = ("--access-file", str(folder / "access.toml"), "--access-tokens-file", str(folder / "tokens.json"))
    return processes.rota("serve", "--store", store, *common, *rules, *options)


@pytest.mark.slow
async def test_who_is_on_the_machine_is_no_peer(
    processes: Processes, store: str, tmp_path: Path, operator: dict[str, str]
) -> None:
    port = free_port()
    serving = serve(processes, store, tmp_path, port)
    serving.wait_until(lambda: ": ready " in serving.output(), "a server that is ready")
    (peer_port,) = listening(serving.pid) - {port}

    async with grpc.aio.insecure_channel(f"127.0.0.1:{peer_port}") as channel:
        rpc: Any = channel.unary_unary(EXCHANGE)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rpc(b"\x91" + pack_asked(1, ListGroups("default")), timeout=60)

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def listening(pid: int) -> set[int]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


@pytest.mark.thorough
async def test_workers_answer_each_other_nevertheless(
    processes: Processes, store: str, tmp_path: Path, operator: dict[str, str]
) -> None:
    port = free_port()
    serving = serve(processes, store, tmp_path, port, "--workers", "2")
    serving.wait_until(lambda: serving.output().count(": ready ") == 2, "workers that are ready")

    answers = [await joined(port, f"g{number}", operator) for number in range(24)]

    # The first generation of a group waits for more members than one.
    assert {status for status, _ in answers} == {httpx.codes.ACCEPTED}
    # Each call took one of two ways at random: that none of them needed the other worker is a matter of 2^-24.
    assert len({owner for _, owner in answers}) == 2
    assert "does not show the secret" not in serving.output()


async def joined(port: int, group: str, headers: dict[str, str]) -> tuple[int, str]:
    """How a join over a connection of its own, which any worker may get, was answered; and the owner of the group."""
    body = {
        "protocol_type": "worker",
        "protocols": [{"name": "range", "metadata": b64encode(b"m").decode()}],
        "group_instance_id": "i1",
        "wait_ms": 0,
    }
    base = f"http://127.0.0.1:{port}/v1/namespaces/default/groups/{group}"
    async with asyncio.timeout(30), httpx.AsyncClient(headers=headers, trust_env=False, timeout=30) as client:
        answer = await client.post(f"{base}/join", json=body)
        owner = await client.get(f"{base}/coordinator")
    return answer.status_code, owner.json().get("replica_id", "")
