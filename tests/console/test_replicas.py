"""The console of a replica shows what other replicas own, and acts on it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from rota.protocol.ids import shard_of
from rota.protocol.limits import Limits
from rota.server.bootstrap import Services, open_services
from rota.server.settings import Address, Settings
from rota.storage.migrate import upgrade
from tests.console.conftest import Site

SHARDS = 8
NAMES = (f"indexers-{number}" for number in itertools.count())
GROUPS = list({shard_of("default", name, SHARDS): name for name in itertools.islice(NAMES, 100)}.values())
"""One of each shard, so that each replica owns some."""
_DEADLINE_S = 30.0


@asynccontextmanager
async def a_replica(dsn: str, name: str) -> AsyncIterator[tuple[Services, Site]]:
    limits = Limits(initial_rebalance_delay_ms=0)
    settings = Settings(store=dsn, http=Address("127.0.0.1", 0), shard_count=SHARDS, limits=limits)
    async with open_services(settings, f"http://{name}") as services:
        transport = httpx.ASGITransport(services.api)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{name}", trust_env=False) as http:
            yield services, Site(http, "default")


async def until_shared(*replicas: Services) -> None:
    """Return once each holds its share, each has one, and each knows the owners of the rest."""
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            held = [len(replica.coordinator.owners()) for replica in replicas]
            due = [replica.coordinator.shards_due() for replica in replicas]
            owners = [each.coordinator.locate("default", group) for each in replicas for group in GROUPS]
            if held == due and sum(held) == SHARDS and all(held) and all(owner.replica_id for owner in owners):
                return
            await asyncio.sleep(0.05)


async def test_any_replica_shows_every_group_and_acts_on_it(postgres_dsn: str) -> None:
    await upgrade(postgres_dsn)
    async with a_replica(postgres_dsn, "one") as (one, first), a_replica(postgres_dsn, "two") as (two, second):
        await until_shared(one, two)
        owners = {one.coordinator.locate("default", group).replica_id for group in GROUPS}
        assert owners == {one.coordinator.replica_id, two.coordinator.replica_id}, "groups of both are looked at"
        for group in GROUPS:
            await first.stable(group)

        overview = await second.page("/")
        shards = await first.page("/shards")
        for group in GROUPS:
            text = await second.page(second.path(group))
            assert "generation 1" in text
            assert "It took" in text
            acted = await second.send(second.path(group, "act", "rebalance"), {"typed": group, "note": "by the other"})
            assert acted.status_code == httpx.codes.SEE_OTHER, acted.text
            assert "a rebalance was asked for: by the other" in await first.page(first.path(group))

    assert f"All is well: {SHARDS} groups with {SHARDS} members" in overview
    assert f"All {SHARDS} shards are owned by 2 replicas." in shards
    assert "http://one" in shards
    assert "http://two" in shards
