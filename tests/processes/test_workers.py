"""`rota serve --workers N`: several processes behind one port, and none left behind."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack

import httpx
import psutil
import pytest
import redis

import rota
from rota.client import Consumer, OffsetToCommit
from tests.support.ports import free_port
from tests.support.processes import Process, Processes
from tests.support.valkey import ValkeyServer

pytestmark = pytest.mark.processes

LEASE_MS = 1_000
STARTED = re.compile(r"a worker starts worker=(\d) pid=(\d+)")


@pytest.fixture
def store(processes: Processes, postgres_dsn: str) -> str:
    assert processes.rota("db", "upgrade", "--store", postgres_dsn).wait_for_exit() == 0
    return postgres_dsn


def serve(processes: Processes, store: str, port: int, *options: str, **env: str) -> Process:
    common = ("--http", f"127.0.0.1:{port}", "--shard-count", "32", "--lease-ms", str(LEASE_MS), "--log-format", "text")
    quick = {"ROTA_LIMITS__INITIAL_REBALANCE_DELAY_MS": "20"}
    return processes.rota("serve", "--store", store, *common, *options, env=quick | env)


def pids(serving: Process) -> list[int]:
    return [int(pid) for _, pid in STARTED.findall(serving.output())]


def started(serving: Process, count: int) -> list[int]:
    """The pids of the workers, once so many have been started and each of those alive has said that it is ready."""
    serving.wait_until(lambda: len(pids(serving)) == count, f"{count} workers")
    serving.wait_until(lambda: serving.output().count(": ready ") == count, f"{count} workers that are ready")
    return pids(serving)


def ask(url: str, path: str, **body: object) -> httpx.Response:
    """Over a connection of its own, so that any worker may get it."""
    with httpx.Client(base_url=f"{url}/v1/namespaces/default", timeout=30, trust_env=False) as client:
        return client.post(path, json=body) if body else client.get(path)


def owners(url: str, groups: Iterable[str]) -> set[str]:
    return {ask(url, f"groups/{group}/coordinator").json().get("replica_id", "") for group in groups}


def last_seen_in(valkey: ValkeyServer) -> bytes:
    """The members that the replicas have published, all names in one."""
    with redis.Redis.from_url(valkey.url, socket_timeout=30) as client:
        return b"".join(name for key in client.scan_iter("rota:*:heard") for name in client.zrange(key, 0, -1))


def joined(url: str, group: str) -> dict[str, object]:
    """The heartbeat of a member of a group of its own."""
    protocols = [{"name": "p", "metadata": ""}]
    join = {"protocol_type": "worker", "protocols": protocols, "group_instance_id": "w", "session_timeout_ms": 120_000}
    member = ask(url, f"groups/{group}/join", **join).raise_for_status().json()
    beat = {"member_id": member["member_id"], "generation_id": member["generation_id"]}
    ask(url, f"groups/{group}/sync", **beat).raise_for_status()
    return beat


@pytest.mark.thorough
def test_a_killed_worker_is_restarted_while_requests_are_served(processes: Processes, store: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serving = serve(processes, store, port, "--workers", "2")
    first, second = started(serving, 2)
    assert {ask(url, "groups").status_code for _ in range(10)} == {200}

    os.kill(first, signal.SIGKILL)
    serving.wait_for_line(rf"a worker ended by itself worker=0 pid={first} exit_code=-9")
    # No connection is refused: the other worker accepts what comes. Until the lease is over, a shard of the dead one
    # may have no owner, and clients are asked to try again.
    answers = [ask(url, f"groups/g{n}").status_code for n in range(40)]
    *_, third = started(serving, 3)

    assert set(answers) <= {404, 503}
    assert 404 in answers
    assert third not in (first, second)
    assert {ask(url, "groups").status_code for _ in range(10)} == {200}
    assert serving.terminate() == 0
    assert [pid for pid in (first, second, third) if psutil.pid_exists(pid)] == []


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_ends_no_other(processes: Processes, store: str) -> None:
    """The supervisor may open no file more, as where a machine has no memory or process left."""
    serving = serve(processes, store, free_port(), "--workers", "2")
    doomed, other = started(serving, 2)
    most = resource.prlimit(serving.pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{serving.pid}/fd"))
    resource.prlimit(serving.pid, resource.RLIMIT_NOFILE, (used - 1, most[1]))

    os.kill(doomed, signal.SIGKILL)
    serving.wait_for_line("a worker cannot be started worker=0")
    resource.prlimit(serving.pid, resource.RLIMIT_NOFILE, most)

    assert other in started(serving, 3)
    assert psutil.pid_exists(other)
    assert serving.terminate() == 0


@pytest.mark.slow
def test_with_a_redis_no_heartbeat_fails_when_a_worker_is_killed(
    processes: Processes, store: str, valkey_server: ValkeyServer
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    # The lease of the other worker is to last, however busy the machine is.
    serving = serve(processes, store, port, "--workers", "2", "--redis", valkey_server.url, "--lease-ms", "5000")
    doomed, _ = started(serving, 2)
    beats = {f"g{n}": joined(url, f"g{n}") for n in range(8)}
    # Shards on their way from the first worker to the second have no owner for a moment.
    serving.wait_until(lambda: len(owners(url, beats)) == 2 and "" not in owners(url, beats), "both to own shards")
    members = [str(beat["member_id"]).encode() for beat in beats.values()]
    serving.wait_until(lambda: all(each in last_seen_in(valkey_server) for each in members), "all in Redis")

    os.kill(doomed, signal.SIGKILL)
    serving.wait_for_line(f"a worker ended by itself .* pid={doomed} ")
    answers = {ask(url, f"groups/{group}/heartbeat", **beats[group]).status_code for _ in range(8) for group in beats}
    started(serving, 3)
    answers |= {ask(url, f"groups/{group}/heartbeat", **beats[group]).status_code for group in beats}

    assert answers == {200}
    assert {ask(url, f"groups/{group}").json()["generation_id"] for group in beats} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "grpc", "grpc+stream"])
async def test_members_reach_their_groups_worker_and_outlive_it(processes: Processes, store: str, scheme: str) -> None:
    ports = {"http": free_port(), "grpc": free_port()}
    grpc = ("--grpc", f"127.0.0.1:{ports['grpc']}")
    serving = serve(processes, store, ports["http"], "--workers", "2", *grpc, "--lease-ms", "5000")
    doomed, _ = started(serving, 2)
    groups = [f"g{number}" for number in range(6)]
    shared = f"http://localhost:{ports['http']}"
    serving.wait_until(lambda: len(owners(shared, groups)) == 2 and "" not in owners(shared, groups), "two owners")
    alone = set(re.findall(r"listening url=(http://\S+)", serving.output())) - {f"http://127.0.0.1:{ports['http']}"}
    assert len(alone) == 2

    lost: list[object] = []
    async with AsyncExitStack() as stack, asyncio.timeout(90):
        url = f"{scheme}://localhost:{ports[scheme.partition('+')[0]]}"
        client = await stack.enter_async_context(rota.connect(url))
        consumers = [client.consumer(group, {"work": 1}, on_lost=lost.append) for group in groups]
        for consumer in consumers:
            await stack.enter_async_context(consumer)
            await consumer.wait_assigned()
        await until_nothing_is_forwarded(alone, consumers)
        generations = [consumer.generation_id for consumer in consumers]

        os.kill(doomed, signal.SIGKILL)
        await asyncio.to_thread(started, serving, 3)
        await until_nothing_is_forwarded(alone, consumers)

        assert [consumer.generation_id for consumer in consumers] == generations
        assert lost == []


async def until_nothing_is_forwarded(workers: Iterable[str], consumers: Iterable[Consumer]) -> None:
    while await forwarded_while_committing(workers, consumers):
        pass


async def forwarded_while_committing(workers: Iterable[str], consumers: Iterable[Consumer]) -> float:
    before = forwarded(workers)
    for number in range(5):
        for consumer in consumers:
            await consumer.commit([OffsetToCommit("work", 0, number)])
    return forwarded(workers) - before


def forwarded(workers: Iterable[str]) -> float:
    """The calls that they have passed on to each other so far."""
    pages = [httpx.get(f"{url}/metrics", trust_env=False).text for url in workers]
    calls = re.compile(r"^rota_forwarded_calls_total\{.* (\S+)$", re.MULTILINE)
    return sum(float(count) for page in pages for count in calls.findall(page))


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_supervisor(end: signal.Signals, processes: Processes, store: str) -> None:
    serving = serve(processes, store, free_port(), "--workers", "2")
    workers = [psutil.Process(pid) for pid in started(serving, 2)]

    serving.send(end)

    _, alive = psutil.wait_procs(workers, timeout=60)
    serving.wait_for_exit()
    assert alive == []


@pytest.mark.slow
def test_workers_share_http_grpc_and_probes_and_admit_no_other(
    processes: Processes, store: str, valkey_server: ValkeyServer
) -> None:
    http, grpc, probes = free_port(), free_port(), free_port()
    options = ("--workers", "2", "--grpc", f"127.0.0.1:{grpc}", "--probes", f"127.0.0.1:{probes}")
    serving = serve(processes, store, http, *options, "--redis", valkey_server.url)
    started(serving, 2)
    asked = [httpx.get(f"http://127.0.0.1:{probes}/readyz", trust_env=False).status_code for _ in range(10)]
    assert set(asked) == {httpx.codes.OK}
    assert serving.output().count(f"url=grpc://127.0.0.1:{grpc}") == 2

    alone = serve(processes, store, http)
    same_http = serve(processes, store, http, "--workers", "2")
    same_grpc = serve(processes, store, free_port(), "--workers", "2", "--grpc", f"127.0.0.1:{grpc}")
    same_probes = serve(processes, store, free_port(), "--workers", "2", "--probes", f"127.0.0.1:{probes}")

    assert_refuses(alone, f"cannot listen on http://127.0.0.1:{http}: Address already in use")
    assert_refuses(same_http, f"cannot listen on http://127.0.0.1:{http}: Address already in use")
    assert_refuses(same_probes, f"cannot listen on http://127.0.0.1:{probes}: Address already in use")
    assert_refuses(same_grpc, f"cannot listen on grpc://127.0.0.1:{grpc}: .*Address already in use")
    assert serving.terminate() == 0


def assert_refuses(process: Process, reason: str) -> None:
    """It ends with 1 and says why."""
    assert process.wait_for_exit() == 1
    assert re.search(reason, process.output()), process.output()
