"""The baseline beside this release on one Postgres, through a rolling upgrade and a rollback, with members at work.

The policy of compatibility begins with release 0.3.0, and nothing was released before it. Until then the baseline is
the present commit, whose wheel is built here; after it, the commit of the previous release, and each release moves it:
see docs/how-to/upgrade.md.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import subprocess
import sys
import tarfile
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import DEADLINE_S, Cluster
from tests.support.cluster_wiring import DirectNetwork
from tests.support.processes import Process, Processes

PREVIOUS = "HEAD"
"""The commit of the baseline."""
REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("member_program.py")
GROUPS = ("a", "b", "c", "d")
STREAMS, UNARY, CONSUMES = "b", "c", "d"
"""Members of these groups are on gRPC's session streams, use gRPC's unary calls, and are consumers; otherwise HTTP."""
PROCESSES_OF_A_GROUP = 2
PARTITIONS = 4
LEASE_MS = 5_000
HAND_OVER_S = 1.0
"""Calls for a shard that is handed over in order wait for its next owner, or are answered with 503 for so long."""
NOW: Mapping[str, str] = {}
"""The environment of this release: the one that runs the tests."""

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment in which Python finds the previous release's wheel instead of this one."""
    folder = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(
        [
            "git",
            "archive",
            PREVIOUS,
            "service",
            "migrations",
            "pyproject.toml",
            "hatch_build.py",
            "README.md",
            "LICENSE",
            "THIRD-PARTY.md",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    assert archive.returncode == 0, f"{archive.stderr.decode()}: this needs the whole history (git fetch --unshallow)"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder / "sources", filter="data")
    installed = folder / "installed"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, folder / "sources"], check=True, timeout=300)
    (wheel,) = folder.glob("rota-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, wheel], check=True, timeout=300)
    return {"PYTHONPATH": str(installed)}


class Members:
    """Processes of members, and what they have printed."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.running: list[Process] = []

    def start(self, urls: list[str], group: str, release: Mapping[str, str], *kind: str) -> Process:
        member = self._processes.start(sys.executable, PROGRAM, ",".join(urls), group, *kind, env=release)
        self.running.append(member)
        return member

    def said(self, what: str, *members: Process) -> Counter[str]:
        lines = [line.split() for member in members or self.running for line in member.output().splitlines()]
        return Counter(words[1] for words in lines if words[0] == what)

    async def until_all_work(self, group: str, *members: Process) -> None:
        """Every partition of the group has a task, and one member leads."""
        wanted = {f"{group}/{partition}" for partition in range(PARTITIONS)} | {f"{group}-leader"}
        await self._until(lambda: wanted <= self.said("alive", *members).keys(), f"{group} works")

    async def until_progress(self) -> None:
        """Every task has gone on twice since this call."""
        before = self.said("alive")
        await self._until(lambda: all(now >= before[name] + 2 for name, now in self.said("alive").items()), "progress")

    async def _until(self, condition: object, what: str) -> None:
        assert callable(condition)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    assert all(member.running for member in self.running), self._processes.outputs()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}: {self._processes.outputs()}") from None

    async def stop(self, member: Process) -> None:
        self.running.remove(member)
        assert await asyncio.to_thread(member.terminate) == 0, member.output()


async def test_an_upgrade_and_a_rollback_cause_no_generation(processes: Processes, previous: Mapping[str, str]) -> None:
    env = dict.fromkeys(("r1", "r2"), previous)
    async with Cluster(
        processes, lease_ms=LEASE_MS, network=DirectNetwork(), names=tuple(env), env=env, upgraded_by=previous
    ) as cluster:
        put(cluster.urls[0], "topics/work", {"partitions": PARTITIONS})
        members = Members(processes)
        for group in GROUPS:
            for number in range(PROCESSES_OF_A_GROUP):
                urls = urls_of(cluster, group)
                kind = ["consumer"] if group == CONSUMES else []
                members.start(urls[number:] + urls[:number], group, previous, *kind)
        for group in GROUPS:
            await members.until_all_work(group)
        await settled(cluster)
        generations, began, ended = generations_of(cluster), members.said("began"), members.said("ended")
        refused = members.said("refused")

        newcomers = 0
        probe = asyncio.create_task(unavailable(cluster))
        upgrade = processes.rota("db", "upgrade", "--store", cluster.dsn)
        assert await asyncio.to_thread(upgrade.wait_for_exit) == 0, upgrade.output()
        for release in (NOW, previous):
            for replica in cluster.replicas.values():
                await replica.terminate()
                replica.env = dict(release)
                replica.start()
                await cluster.until_settled()
                await members.until_progress()
                for url in cluster.urls:
                    newcomers += 1
                    await a_newcomer_works(members, url, f"new{newcomers}", previous)
            assert generations_of(cluster) == generations
            assert members.said("began") == began
            assert members.said("ended") == ended
            assert members.said("refused") == refused

        probe.cancel()
        asked, spans = await probe
        print(
            f"{members.said('alive').total()} steps of {began.total()} tasks, {newcomers} newcomers, 0 generations; "
            f"{asked} calls of replicas that were ready, {len(spans)} spans with 503, {sum(spans):.1f} s in all, "
            f"the longest {max(spans, default=0):.2f} s"
        )
        assert asked > 1_000
        assert max(spans, default=0) < HAND_OVER_S
        for member in tuple(members.running):
            await members.stop(member)
        cluster.verify()


async def a_newcomer_works(members: Members, url: str, group: str, release: Mapping[str, str]) -> None:
    """A member that reaches one replica gets its share there, and the replica lists what the others have, too."""
    newcomer = members.start([url], group, release)
    await members.until_all_work(group, newcomer)
    listed = {each["group_id"] for each in get(url, "groups")["groups"]}
    assert {*GROUPS, group} <= listed
    assert [each["topic"] for each in get(url, "topics")["topics"]] == ["work"]
    await members.stop(newcomer)


def urls_of(cluster: Cluster, group: str) -> list[str]:
    """Where members of the group reach the replicas."""
    schemes = {STREAMS: "grpc+stream", UNARY: "grpc"}
    return [f"{schemes[group]}://{each}" for each in cluster.grpc_addresses] if group in schemes else cluster.urls


async def unavailable(cluster: Cluster) -> tuple[int, list[float]]:
    """Until cancelled, ask each ready replica for each group: how often, and the seconds of each span of 503."""
    loop, asked = asyncio.get_running_loop(), 0
    since: dict[tuple[str, str], float] = {}
    spans: list[float] = []
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        try:
            while True:
                for url, group in itertools.product(cluster.urls, GROUPS):
                    status = await status_of(client, url, group)
                    asked += status != 0
                    if status == httpx.codes.SERVICE_UNAVAILABLE:
                        since.setdefault((url, group), loop.time())
                    elif (url, group) in since:
                        spans.append(loop.time() - since.pop((url, group)))
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            return asked, spans


async def status_of(client: httpx.AsyncClient, url: str, group: str) -> int:
    """0 where the replica is stopped, or says that it is not ready: no load balancer sends calls there."""
    try:
        if (await client.get(f"{url}/readyz")).status_code != httpx.codes.OK:
            return 0
        return (await client.get(f"{url}/v1/namespaces/default/groups/{group}")).status_code
    except httpx.TransportError:
        return 0


async def settled(cluster: Cluster) -> None:
    """The groups agree: nothing that has begun is still to be answered."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while any(each["state"] != "Stable" for each in get(cluster.urls[0], "groups")["groups"]):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)


def generations_of(cluster: Cluster) -> dict[str, int]:
    """By group, as the store has them: of the groups that work all the time."""
    query = "SELECT json_object_agg(group_id, generation_id) FROM rota.groups WHERE group_id NOT LIKE 'new%'"
    found: dict[str, int] = json.loads(cluster.postgres.execute(query, database="rota"))
    return found


def get(url: str, path: str) -> dict[str, list[dict[str, str]]]:
    return call(f"{url}/v1/namespaces/default/{path}", "GET")


def put(url: str, path: str, body: Mapping[str, int]) -> None:
    call(f"{url}/v1/namespaces/default/{path}", "PUT", json.dumps(body).encode())


def call(url: str, method: str, body: bytes | None = None) -> dict[str, list[dict[str, str]]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, body, {"content-type": "application/json"}, method=method)
    with opener.open(request, timeout=30) as answer:
        found: dict[str, list[dict[str, str]]] = json.load(answer)
    return found
