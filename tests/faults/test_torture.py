"""One fault after the other, drawn from a seed, on clusters with members that come and go, for as long as one says."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from time import monotonic

import pytest

from tests.faults.hurts import Hurt, hurts_of
from tests.faults.load import SESSION_MS, Crowd, Load
from tests.faults.verdict import Verdict, judge
from tests.support.cluster import Cluster
from tests.support.cluster_network import ProxiedNetwork
from tests.support.namespaced_network import NamespacedNetwork
from tests.support.namespaces import why_not
from tests.support.processes import Processes
from tests.support.torture import Row, add_row, rounds

pytestmark = [
    pytest.mark.processes,
    pytest.mark.torture,
    # asyncio leaves a socket to the collector where a connection is given up just as it is made.
    pytest.mark.filterwarnings("ignore:unclosed (<socket|transport):ResourceWarning"),
]

FAULTS_OF_A_CLUSTER = 8
"""Then another one starts: the longer its journal, the longer it takes to look at."""
FACTS = 60
CHURN_S = 8.0
LONGEST_S = 1.2 * SESSION_MS / 1_000
"""So long that a member without heartbeats would expire."""


async def test_no_fault_of_a_cluster_loses_or_evicts_anything(processes: Processes, seed: int) -> None:
    started, chance = monotonic(), random.Random(seed)
    faults: Counter[str] = Counter()
    verdicts: list[Verdict] = []
    for number in rounds(None):
        network = _network(number)
        async with Cluster(processes, network=network) as cluster:
            verdict = await _hurt_again_and_again(cluster, hurts_of(network), chance, seed + number, faults)
            verdicts.append(verdict)
            if not verdict.violations:
                await asyncio.to_thread(cluster.verify)
        if verdict.violations:
            break
    print(dict(faults))
    add_row(_row(verdicts, faults, (monotonic() - started) / 60, seed))
    verdicts[-1].assert_clean()


def _network(number: int) -> ProxiedNetwork | NamespacedNetwork:
    """Packets and proxies in turn, where this machine lets us at packets."""
    if reason := why_not():
        print(f"no network namespaces here, links are cut by proxies only: {reason}")
        return ProxiedNetwork()
    return ProxiedNetwork() if number % 2 else NamespacedNetwork()


async def _hurt_again_and_again(
    cluster: Cluster, hurts: dict[str, Hurt], chance: random.Random, seed: int, faults: Counter[str]
) -> Verdict:
    """Up to the first thing that is wrong."""
    load = Load(cluster.urls, cluster.shard_count, seed, Crowd(churn_s=CHURN_S))
    async with load.running():
        for _ in range(FAULTS_OF_A_CLUSTER):
            name = chance.choice(sorted(hurts))
            faults[name] += 1
            async with hurts[name](cluster, chance):
                await asyncio.sleep(chance.uniform(0, LONGEST_S))
                await load.until_facts(FACTS)
            await cluster.until_settled()
            await load.until_facts(FACTS)
            verdict = await judge(load, cluster)
            print(f"{name}: {verdict}")
            if verdict.violations:
                return verdict
    return await judge(load, cluster)


def _row(verdicts: list[Verdict], faults: Counter[str], minutes: float, seed: int) -> Row:
    return Row(
        "clusters of 3 replicas",
        minutes,
        rounds=len(verdicts),
        faults=faults.total(),
        generations=sum(verdict.generations for verdict in verdicts),
        acknowledged=sum(verdict.acked.total() for verdict in verdicts),
        unanswered=sum(verdict.unanswered for verdict in verdicts),
        lost=sum(verdict.lost for verdict in verdicts),
        violations=sum(len(verdict.violations) for verdict in verdicts),
        independent=sum(verdict.independent for verdict in verdicts),
        seed=seed,
    )
