"""News of a group reaches any replica that listens, wherever the group's shard is and wherever it goes."""

from __future__ import annotations

from collections.abc import Sequence

from rota.replica.ports import JournalEvent
from rota.storage.memory import MemoryTables
from tests.runtime.conftest import a_join, a_stable_member, until
from tests.runtime.test_routing import RunningReplica, a_group_of, a_replica, fleet, settled

__all__ = ["fleet"]


class Listener:
    """The notifications that it got, in order."""

    def __init__(self) -> None:
        self.events: list[JournalEvent] = []

    def __call__(self, events: Sequence[JournalEvent]) -> None:
        self.events += events

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


async def test_events_of_a_group_of_ones_own_come_at_once(fleet: list[RunningReplica]) -> None:
    here = fleet[0]
    group, reported = a_group_of(here), Listener()
    end = here.routed.subscribe("default", group, reported)

    await here.routed.call(a_join(group))

    assert reported.kinds == ["member_joined", "rebalance_started", "generation_completed", "leader_changed"]
    end()
    await here.routed.stop()


async def test_events_of_a_group_of_another_replica_come_too(fleet: list[RunningReplica]) -> None:
    here, there = fleet[0], fleet[1]
    group, reported = a_group_of(there), Listener()
    end = here.routed.subscribe("default", group, reported)
    await until(lambda: bool(there.local._host("default", group).watchers))  # type: ignore[union-attr]

    await there.routed.call(a_join(group))

    await until(lambda: reported.kinds[-1:] == ["leader_changed"])
    assert [event.seq for event in reported.events] == sorted({event.seq for event in reported.events})
    end()
    await here.routed.stop()


async def test_a_group_is_followed_where_it_goes(tables: MemoryTables) -> None:
    async with a_replica(tables, "r1") as staying:
        async with a_replica(tables, "r2") as going:
            await settled([staying, going])
            group, reported = a_group_of(going), Listener()
            end = staying.routed.subscribe("default", group, reported)
            await until(lambda: bool(going.local._host("default", group).watchers))  # type: ignore[union-attr]
            await a_stable_member(staying.routed, group)  # type: ignore[arg-type]
            await until(lambda: "assignment_synced" in reported.kinds)
            await going.local.stop()
        await until(lambda: staying.routed.is_here("default", group))

        await staying.routed.call(a_join(group, instance="i2", wait_ms=0))

        await until(lambda: reported.kinds[-1] == "rebalance_started")
        revisions = [event.seq for event in reported.events]
        assert revisions == sorted(set(revisions))
        end()
        await staying.routed.stop()
