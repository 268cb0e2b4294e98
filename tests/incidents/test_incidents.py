"""Staged faults: for each, one command and one page of the console must say what is wrong.

Two replicas on one Postgres are shared by all faults. Those of groups are staged together, those of replicas one after
the other. The table has the time from each fault to the sentence of the command, and to that of the page.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import psycopg
import pytest

from rota.protocol.ids import shard_of
from tests.cli.conftest import Rota
from tests.support.cluster import Cluster
from tests.support.cluster_network import ProxiedNetwork
from tests.support.cluster_wiring import POSTGRES
from tests.support.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

NAMESPACE = "on-call"
DEADLINE_S = 60.0
LONG_MS, SHORT_MS = 600_000, 100
ACCESS = """
[[rules]]
name = "everybody"
subjects = ["anonymous"]
actions = ["admin"]

[[quotas]]
namespace = "noisy"
requests_per_s = 1
"""
SHARD_COUNT = 8


@dataclass(slots=True)
class Scene:
    """Two replicas. Calls, commands and pages go to the first."""

    cluster: Cluster
    network: ProxiedNetwork
    http: httpx.Client
    loop: asyncio.AbstractEventLoop
    rota: Rota
    locks: list[psycopg.Connection[Any]] = field(default_factory=list)

    # --- calls -----------------------------------------------------------------------------------

    def ask(self, group_id: str, call: str, namespace: str = NAMESPACE, **body: Any) -> dict[str, Any]:
        answer = self.http.post(f"/v1/namespaces/{namespace}/groups/{group_id}/{call}", json=body)
        found: dict[str, Any] = answer.json()
        return found

    def join(self, group_id: str, name: str, session_ms: int = LONG_MS, **more: Any) -> dict[str, Any]:
        """A newcomer joins in two steps, or in one if it is static."""
        body: dict[str, Any] = {"protocol_type": "consumer", "protocols": [{"name": "range"}]}
        body |= {"session_timeout_ms": session_ms, "rebalance_timeout_ms": LONG_MS, "client_id": name}
        body |= {"wait_ms": 20_000, **more}
        joined = self.ask(group_id, "join", **body)
        if joined.get("code") == "MEMBER_ID_REQUIRED":
            joined = self.ask(group_id, "join", **body, member_id=joined["member_id"])
        return joined

    def hold(self, group_id: str, name: str, session_ms: int = LONG_MS, share: Any = None, **more: Any) -> str:
        """A single member has its share, and is silent from then on."""
        joined = self.join(group_id, name, session_ms, **more)
        assignment = b64encode(json.dumps({"topics": share or {}}).encode()).decode()
        place: dict[str, Any] = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        place |= {"group_instance_id": more["group_instance_id"]} if "group_instance_id" in more else {}
        shares = [{"member_id": joined["member_id"], "assignment": assignment}] if share else []
        self.ask(group_id, "sync", **place, assignments=shares)
        return str(joined["member_id"])

    def lead(self, group_id: str, name: str, session_ms: int) -> str:
        kind = {"protocol_type": "leader", "protocols": [{"name": "single"}]}
        return self.hold(group_id, name, session_ms, group_instance_id=name, **kind)

    def until_empty(self, group_id: str) -> None:
        self._until(lambda: self.http.get(f"/v1/namespaces/{NAMESPACE}/groups/{group_id}").text, '"state":"Empty"')

    def group_of(self, replica: str) -> str:
        """The name of a group in a shard of this replica."""
        shards = self.cluster.shards_of(replica)
        return next(
            name for name in map("group-{}".format, range(100)) if shard_of(NAMESPACE, name, SHARD_COUNT) in shards
        )

    def until_settled(self) -> None:
        asyncio.run_coroutine_threadsafe(self.cluster.until_settled(), self.loop).result()

    # --- what operators read -----------------------------------------------------------------------

    def until_said(self, command: str, pattern: str) -> str:
        def output() -> str:
            done = self.rota(*command.split())
            return " ".join((done.out + done.err).split())

        return self._until(output, pattern)

    def until_shown(self, page: str, pattern: str) -> str:
        return self._until(lambda: self._page(page), pattern)

    def _page(self, path: str) -> str:
        content = self.http.get(path).text.partition("<main")[2]
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", content)).split())

    def _until(self, read: Callable[[], str], pattern: str) -> str:
        """Read again and again until the pattern is there."""
        give_up_at = monotonic() + DEADLINE_S
        while not (found := re.search(pattern, text := read())):
            assert monotonic() < give_up_at, f"no {pattern!r} in {text!r}"
        return found[0]


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault, the command and the page that explain it, and a pattern of each sentence."""

    fault: str
    stage: Callable[[Scene], object]
    command: str
    says: str
    page: str
    shows: str
    end: Callable[[Scene], object] = lambda _scene: None


# --- faults of groups ---------------------------------------------------------------------------------


def stick_a_join(scene: Scene) -> None:
    scene.hold("stuck", "importer-a")
    scene.join("stuck", "importer-b", wait_ms=0)


def let_a_member_flap(scene: Scene) -> None:
    for _ in range(3):
        scene.hold("flapping", "oom-pod-7", SHORT_MS)
        scene.until_empty("flapping")
    scene.hold("flapping", "oom-pod-7")


def silence_a_leader(scene: Scene) -> None:
    member_id = scene.lead("silent", "ledger-1", LONG_MS)
    for _ in range(2):
        scene.ask("silent", "heartbeat", member_id=member_id, generation_id=1)


def let_a_writer_die(scene: Scene) -> None:
    scene.lead("dead", "host-1", SHORT_MS)


def delete_a_dead_writer(scene: Scene) -> None:
    scene.lead("gone", "host-2", SHORT_MS)
    scene.until_empty("gone")
    scene.rota("groups", "delete", "--yes", "gone", "--reason", "moved")


def forget_a_partition(scene: Scene) -> None:
    scene.rota("topics", "put", "parcels", "--partitions", "6")
    metadata = b64encode(json.dumps({"topics": ["parcels"]}).encode()).decode()
    protocols = [{"name": "own", "metadata": metadata}]
    scene.hold("forgetful", "router-1", share={"parcels": [0, 1, 2, 4, 5]}, protocols=protocols)


def exceed_a_quota(scene: Scene) -> None:
    for _ in range(20):
        scene.ask("g", "join", "noisy", protocol_type="consumer", protocols=[{"name": "range"}])


def start_copies(scene: Scene) -> None:
    for _ in range(4):
        scene.hold("copied", "pay", group_instance_id="pay-1")


def poison_a_unit(scene: Scene) -> None:
    first = scene.hold("poisoned", "first", share={"docs": [3]})
    scene.rota("groups", "quarantine", "poisoned", "--after", "2")
    scene.ask("poisoned", "leave", members=[{"member_id": first}])
    for name in ("second", "third"):
        scene.hold("poisoned", name, SHORT_MS, share={"docs": [3]})
        scene.until_empty("poisoned")
    scene.hold("poisoned", "fourth", share={"docs": [3]})


def freeze_a_group(scene: Scene) -> None:
    scene.hold("frozen", "steady-1")
    scene.rota("groups", "freeze", "frozen", "--for", "1h", "--reason", "a deploy")
    scene.join("frozen", "late-1", wait_ms=0)


OF_GROUPS = (
    Incident(
        "a join phase is stuck",
        stick_a_join,
        "groups why stuck",
        r"waits for importer-a.* \(last heartbeat .* ago\) to join again.*`rota groups remove-member stuck importer-a",
        "/groups/on-call/stuck",
        r"waits for importer-a.* to join again.*rota groups remove-member stuck",
    ),
    Incident(
        "a leader is silent",
        silence_a_leader,
        "groups why silent",
        r"ledger-1\S* at 127\.0\.0\.1, which leads, sent no heartbeat for .*; it expires in",
        "/groups/on-call/silent",
        r"ledger-1.*, which leads, sent no heartbeat for .*; it expires in",
    ),
    Incident(
        "a member flaps",
        let_a_member_flap,
        "top",
        r"oom-pod-7 at \S+ \(3 times\)",
        "/",
        r"oom-pod-7 at \S+ \(3 times\)",
    ),
    Incident(
        "a single writer died",
        let_a_writer_die,
        "groups why dead",
        r"It has had no member for .*: member host-1\S* expired: no heartbeat",
        "/groups/on-call/dead",
        r"It has had no member for .*: member host-1.* expired: no heartbeat",
    ),
    Incident(
        "a dead writer's group was deleted",
        delete_a_dead_writer,
        "groups describe gone",
        r"no members since [-:\d ]+: member host-2\S* expired: .*; deleted [-:\d ]+: deleted on request: moved",
        "/groups/on-call/gone",
        r"deleted on .* GMT: deleted on request: moved; no members since .* GMT: member host-2.* expired: no heartbeat",
    ),
    Incident(
        "no member has a partition",
        forget_a_partition,
        "top",
        r"without an owner: parcels/3",
        "/groups/on-call/forgetful",
        r"without an owner: parcels/3.*parcels 3: no owner",
    ),
    Incident(
        "a quota is exceeded",
        exceed_a_quota,
        "--namespace noisy groups why g",
        r"the quota of namespace noisy is exhausted: requests_per_s = 1",
        "/groups/noisy/g",
        r"the quota of namespace noisy is exhausted: requests_per_s = 1",
    ),
    Incident(
        "two copies have one instance id",
        start_copies,
        "groups why copied",
        r"pay-1 was taken over 3 times within 10 min.*another process at 127\.0\.0\.1 joined as pay-1",
        "/groups/on-call/copied",
        r"pay-1 was taken over 3 times within 10 min",
    ),
    Incident(
        "a unit is in quarantine",
        poison_a_unit,
        "groups why poisoned",
        r"docs/3: their holders failed in a row; they are not assigned until they are released",
        "/groups/on-call/poisoned",
        r"docs/3: their holders failed in a row",
    ),
    Incident(
        "a group is frozen",
        freeze_a_group,
        "groups why frozen",
        r"Until .*, 1 h from now \(a deploy\): newcomers, .* wait",
        "/groups/on-call/frozen",
        r"Until .* \(a deploy\): newcomers, .* wait",
    ),
)


# --- faults of replicas -------------------------------------------------------------------------------


def block_the_peers_port(scene: Scene) -> None:
    scene.network.cut("r1", "r2")


def slow_the_store_down(scene: Scene) -> None:
    scene.network.delay("r1", POSTGRES, 2)


def repair(scene: Scene) -> None:
    scene.network.heal()
    scene.until_settled()


def take_a_shards_owner(scene: Scene) -> None:
    """Its owner is killed, and a lock in the store keeps the other replica from claiming the shard."""
    (shard_id, *_) = scene.cluster.shards_of("r2")
    lock = psycopg.connect(scene.cluster.dsn)
    scene.locks.append(lock)
    lock.execute("SELECT FROM rota.shards WHERE shard_id = %s FOR UPDATE", (shard_id,))
    scene.cluster.replicas["r2"].kill9()


def unlock(scene: Scene) -> None:
    scene.locks.pop().close()


def of_replicas(scene: Scene) -> tuple[Incident, ...]:
    theirs = scene.group_of("r2")
    return (
        Incident(
            "the peers' port is blocked",
            block_the_peers_port,
            f"groups why {theirs}",
            r"owner replica-\S+ at 127\.0\.0\.1:\d+ does not answer",
            f"/groups/on-call/{theirs}",
            r"owner replica-\S+ at 127\.0\.0\.1:\d+ does not answer",
            repair,
        ),
        Incident(
            "the store is too slow",
            slow_the_store_down,
            "doctor",
            r"store no \d calls failed within 2 s; see docs/runbooks/RotaStoreFailing\.md",
            "/",
            r"the store cannot be reached",
            repair,
        ),
        Incident(
            "a shard has no owner",
            take_a_shards_owner,
            "doctor",
            r"shards no this replica owns \d of 8, 8 are assigned to it; see docs/runbooks/RotaShardsUnowned\.md",
            "/shards",
            r"\d of 8 shards are owned; the others are free",
            unlock,
        ),
    )


async def test_each_incident_is_explained_by_one_command_and_one_page(
    processes: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "access.toml").write_text(ACCESS)
    (tmp_path / "secret").write_text("s" * 40)
    env = {
        "ROTA_ACCESS_FILE": str(tmp_path / "access.toml"),
        "ROTA_PEER_SECRET_FILE": str(tmp_path / "secret"),
        "ROTA_LIMITS__MIN_SESSION_TIMEOUT_MS": str(SHORT_MS),
    }
    names, network = ("r1", "r2"), ProxiedNetwork()
    both = dict.fromkeys(names, env)
    async with Cluster(processes, network=network, names=names, shard_count=SHARD_COUNT, env=both) as cluster:
        url = cluster.replicas["r1"].url
        with httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False) as http:
            scene = Scene(cluster, network, http, asyncio.get_running_loop(), Rota(url, cluster.dsn, NAMESPACE))
            rows = await asyncio.to_thread(read_all, scene)

    with capsys.disabled():
        print("", *rows, sep="\n")


def read_all(scene: Scene) -> list[str]:
    """Stage everything and read the sentences; returns the lines of the table."""
    began_s = {}
    for incident in OF_GROUPS:
        began_s[incident] = monotonic()
        incident.stage(scene)
    rows = [f"{'fault':35}  {'command':30}       s  {'page':25}       s"]
    # The first ones take the longest until they are wrong.
    rows += [read(scene, incident, began_s[incident]) for incident in reversed(OF_GROUPS)]
    for incident in of_replicas(scene):
        incident.stage(scene)
        rows.append(read(scene, incident, monotonic()))
        incident.end(scene)
    return rows


def read(scene: Scene, incident: Incident, began_s: float) -> str:
    scene.until_said(incident.command, incident.says)
    said_s = monotonic() - began_s
    scene.until_shown(incident.page, incident.shows)
    shown_s = monotonic() - began_s
    return f"{incident.fault:35}  {incident.command:30}  {said_s:6.1f}  {incident.page:25}  {shown_s:6.1f}"
