"""Workers of a group in which the coordinator assigns connectors and tasks: they run and stop as assigned."""

from __future__ import annotations

import json
from typing import Any

from rota.core.group.state import Timer, TimerKind
from rota.core.types import TopicFacts, readable_assignment
from rota.core.types.wire_format import by_topic
from rota.core.types.worker import decode_share
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import KEY, Core, a_heartbeat, a_join, a_leave, a_sync, an_empty_shard
from tests.unit.group.served import finish, the_job

DELAY_MS = 60_000
NAME = "server:incremental"
ORDERS = {"orders": TopicFacts(4)}


class Fleet:
    """Each worker is known by its URL. After each step it is checked that nothing runs twice."""

    def __init__(self, *names: str, topics: dict[str, TopicFacts] | None = None) -> None:
        self.core: Core = an_empty_shard()
        self.topics = ORDERS if topics is None else topics
        self.ids: dict[str, str] = {}
        self.running: dict[str, dict[str, list[int]]] = {}
        self.config_offsets: dict[str, int] = {}
        self.rounds = 0
        for name in names:
            self.start(name)
        self.settle()

    # --- what happens --------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """A new process, which runs nothing."""
        member_id = f"{name}-{len(self.core.ids)}"
        self.core.ids.append(member_id)
        self.core.ask(a_join(new=member_id, protocols=self._says(name, {}), protocol_type="worker"))
        self.ids[name], self.running[name] = member_id, {}
        self._join(name)

    def leave(self, name: str) -> None:
        del self.running[name]
        self.core.ask(a_leave(self.ids.pop(name)))

    def wait(self, ms: int) -> None:
        """Time passes, with heartbeats. The replica assigns when it is asked to."""
        end_ms = self.core.now_ms + ms
        while self.core.now_ms < end_ms:
            due = [timer for *_, timer in self.core._timers if timer.kind is TimerKind.ASSIGN]
            next_ms = min([timer.at_ms for timer in due if timer.at_ms > self.core.now_ms] + [end_ms])
            self.core.advance(min(5_000, next_ms - self.core.now_ms))
            for timer in due:
                if timer.at_ms <= self.core.now_ms:
                    self.assign(timer)
            for member_id in self.ids.values():
                self.core.ask(a_heartbeat(member_id, self.core.generation_id))

    def assign(self, timer: Timer | None = None) -> None:
        """The replica computes the assignment that it is asked for, if there is one."""
        self.core.shard.note_asked(timer or Timer(TimerKind.ASSIGN, *KEY, "", 0), self.core.now_ms)
        if self.core.shard.assignment_job(*KEY) is not None:
            job = the_job(self.core)
            wanted = job.side.wants_topic(job.generation) if job.side.wants_topic is not None else bool
            finish(self.core, job, {name: facts for name, facts in self.topics.items() if wanted(name)})

    def settle(self) -> None:
        """Rounds until no worker has to stop anything."""
        for _ in range(10):
            self.rounds += self.core.group.state != "Stable"
            while self.core.group.state == "PreparingRebalance":
                for name in self.ids:
                    if not self.core.group.members[self.ids[name]].joined:
                        self._join(name)
                self.core.advance(100)
            if self.core.group.state == "CompletingRebalance":
                self.assign()
            stopped = [name for name in self.ids if self._fetch(name)]
            for name in stopped:
                self._join(name)
            if not stopped:
                return
        raise AssertionError("the fleet does not come to rest")

    # --- what there is ------------------------------------------------------------------------------

    def tasks(self, name: str) -> int:
        return sum(task >= 0 for tasks in self.running[name].values() for task in tasks)

    def idle(self) -> int:
        """How many tasks and connectors run nowhere."""
        everything = sum(facts.partitions + 1 for facts in self.topics.values())
        return everything - sum(len(tasks) for running in self.running.values() for tasks in running.values())

    def reported(self, name: str) -> dict[str, Any]:
        """A worker's share, as people read it."""
        share = readable_assignment("worker", self.core.group.members[self.ids[name]].assignment)
        assert share is not None
        return dict(share)

    def _says(self, name: str, running: dict[str, list[int]]) -> tuple[tuple[str, bytes], ...]:
        said = {
            "version": 1,
            "url": f"http://{name}",
            "topics": ["orders", "audit-*"],
            "running": running,
            "config_offset": self.config_offsets.get(name, -1),
            "scheduled_rebalance_max_delay_ms": DELAY_MS,
        }
        return ((NAME, json.dumps(said).encode()),)

    def _join(self, name: str) -> None:
        metadata = self._says(name, self.running[name])
        self.core.send(a_join(self.ids[name], protocols=metadata, protocol_type="worker"))

    def _fetch(self, name: str) -> bool:
        """Run what it is told to; whether it has stopped anything, so that it has to join again."""
        reply = self.core.ask(a_sync(self.ids[name], self.core.generation_id))
        assert reply.error is ErrorCode.NONE
        share = decode_share(reply.assignment)
        self.running[name] = by_topic(share.run)
        every = [(c, task) for running in self.running.values() for c, tasks in running.items() for task in tasks]
        assert len(every) == len(set(every)), "nothing runs twice"
        return bool(share.revoke)
