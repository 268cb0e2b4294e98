"""Tests of the billing without a server: pytest examples/leader_in_fastapi/test_billing.py."""

import asyncio

import rota.testing
from examples.leader_in_fastapi.app import Billing, Campaign
from rota.testing import Coordinator


async def cut_off() -> None:
    first, second = Billing(), Billing()
    async with Coordinator() as coordinator, asyncio.TaskGroup() as replicas:
        client = coordinator.connect()
        campaigns = [replicas.create_task(Campaign(first).run(client))]
        await asyncio.sleep(5)
        campaigns.append(replicas.create_task(Campaign(second).run(coordinator.connect())))
        await asyncio.sleep(5)
        assert first.rounds
        assert not second.rounds

        coordinator.disconnect(client)
        await asyncio.sleep(15)  # The session.
        last_round = first.rounds
        await asyncio.sleep(60)

        assert second.rounds
        assert second.written_with > first.written_with
        assert first.rounds == last_round
        for campaign in campaigns:
            campaign.cancel()


def test_the_billing_moves_on_when_its_replica_is_cut_off() -> None:
    rota.testing.run(cut_off())


async def restarted() -> None:
    billing = Billing()
    async with Coordinator() as coordinator:
        campaign = asyncio.create_task(Campaign(billing).run(coordinator.connect()))
        await asyncio.sleep(5)

        await coordinator.stop()
        await asyncio.sleep(5)
        rounds = billing.rounds
        await asyncio.sleep(60)
        assert billing.rounds - rounds < 300, "the billing went on after its term"
        await coordinator.start()
        await asyncio.sleep(60)

        assert billing.rounds - rounds > 1_000
        campaign.cancel()


def test_the_billing_stops_while_the_coordinator_is_away() -> None:
    rota.testing.run(restarted())
