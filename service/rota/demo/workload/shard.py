"""One shard of a fleet in virtual time: the real core, its timers, and the journal that it produces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from rota.core.group.records import Entry, ShardAcquired, ShardReleased, encode_entry
from rota.core.group.rows import ShardImage
from rota.core.group.shard import Shard
from rota.core.group.state import Result, Timer
from rota.demo.workload.fleet import DAY_MS, HOUR_MS, MINUTE_MS, GroupPlan
from rota.demo.workload.member import PlayedMember
from rota.protocol.limits import Limits
from rota.protocol.messages import Reply, Request
from rota.testing.scheduler import Process, Scheduler

JournalRow = tuple[int, int, int, int, str, str, int, str, str, str]
"""The columns of `group_events`, the time in milliseconds, the payload as JSON."""

Answered = Callable[[Reply], None]
_SWEEP_MS = 10 * MINUTE_MS


class ShardWorld:
    """All groups of one shard. Shards are independent, so each may run in a separate process."""

    def __init__(self, shard_id: int, plans: list[GroupPlan], *, seed: int, starts_at_ms: int) -> None:
        self.shard_id = shard_id
        self.rng = Random(f"{seed}/shard/{shard_id}")
        self.scheduler = Scheduler()
        self.scheduler.now_ms = starts_at_ms
        self.rows: list[JournalRow] = []
        self.epoch = 0
        self._shard = Shard(shard_id, Limits())
        self._seq = 0
        self._numbers = 0
        self._waiting: dict[int, Answered] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._members: list[PlayedMember] = []
        self._take_over(graceful=True)
        for plan in plans:
            self._start_group(plan)
        self._every(_SWEEP_MS, self._sweep, exactly=True)
        self._every(3 * DAY_MS, lambda: self._take_over(graceful=True))
        self._every(9 * DAY_MS, lambda: self._take_over(graceful=False))

    def run(self, until_ms: int) -> Iterator[JournalRow]:
        """Run until a time, and yield the lines of the journal."""
        while self.scheduler.now_ms < until_ms:
            self.scheduler.run_until(min(until_ms, self.scheduler.now_ms + HOUR_MS))
            decided, self.rows = self.rows, []
            yield from decided

    def image(self) -> ShardImage:
        """Return the rows of the current state, as a new owner would load them."""
        self._shard.forget_unsettled()
        return self._shard.image(self._seq)

    # --- what members use -------------------------------------------------------------------------

    def send(self, request: Request, member: Process, answered: Answered, *, wait_ms: int = 0) -> None:
        """Send a request to the core after a latency; `answered` gets the reply if the member still runs."""
        self._numbers += 1
        self.scheduler.after(self.latency(), None, self._receive, request, self._numbers, member, answered, wait_ms)

    def later(self, delay_ms: int, member: Process, act: Callable[..., None], *args: Any) -> None:
        self.scheduler.after(delay_ms, member, act, *args)

    def latency(self) -> int:
        return 1 + int(self.rng.expovariate(0.5))

    def think(self) -> int:
        """Draw the time that a program takes to compute an assignment, or to revoke its share."""
        return 5 + int(self.rng.expovariate(0.02))

    def new_member_id(self, client_id: str) -> str:
        return f"{client_id}-{self.rng.getrandbits(48):012x}"

    def progress(self, group_id: str, partition: int) -> int:
        key = (group_id, partition)
        self._offsets[key] = self._offsets.get(key, 0) + int(self.rng.expovariate(0.01))
        return self._offsets[key]

    # --- the core ---------------------------------------------------------------------------------

    def _receive(self, request: Request, call: int, member: Process, answered: Answered, wait_ms: int) -> None:
        def reply(value: Reply) -> None:
            self.scheduler.after(self.latency(), member, answered, value)

        self._waiting[call] = reply
        self._take(self._shard.handle(request, call, self.scheduler.now_ms))
        if wait_ms and call in self._waiting:
            self.scheduler.after(self._roughly(wait_ms), None, self._ask_again, request, call, member, wait_ms)

    def _ask_again(self, request: Request, call: int, member: Process, wait_ms: int) -> None:
        """Send the next heartbeat after a parked one has ended, in one step, because there are millions."""
        answered = self._waiting.get(call)
        if answered is None or member.dead:
            self._waiting.pop(call, None)
            return
        if member.paused_until_ms <= self.scheduler.now_ms:
            # The core answers the earlier call, whose caller does not wait any more.
            del self._waiting[call]
            self._numbers += 1
            call = self._numbers
            self._waiting[call] = answered
            self._take(self._shard.handle(request, call, self.scheduler.now_ms))
        if call in self._waiting:
            self.scheduler.after(self._roughly(wait_ms), None, self._ask_again, request, call, member, wait_ms)

    def _roughly(self, wait_ms: int) -> int:
        """Draw the duration of a wait with both latencies; sometimes the machine is busy."""
        rng = self.rng
        late_ms = int(rng.expovariate(0.05)) if rng.random() < 0.98 else int(rng.expovariate(0.0008))
        return wait_ms + late_ms

    def _take(self, result: Result) -> None:
        for entry in result.records:
            self._write(entry)
        for timer in result.timers:
            delay_ms = max(0, timer.at_ms - self.scheduler.now_ms)
            self.scheduler.after(delay_ms, None, self._fire, timer, self.epoch)
        for call, reply in result.replies:
            if (answer := self._waiting.pop(call, None)) is not None:
                answer(reply)
        if result.records:
            self._shard.rows()

    def _write(self, entry: Entry) -> None:
        self._seq += 1
        line = encode_entry(entry)
        self.rows.append(
            (
                self.shard_id,
                self._seq,
                line["at_ms"],
                self.epoch,
                line["namespace"],
                line["group_id"],
                line["generation_id"],
                line["kind"],
                line["reason"],
                json.dumps(line["payload"], ensure_ascii=False),
            )
        )

    def _fire(self, timer: Timer, epoch: int) -> None:
        if epoch == self.epoch:
            self._take(self._shard.on_timer(timer, self.scheduler.now_ms))

    def _sweep(self) -> None:
        self._take(self._shard.sweep(self.scheduler.now_ms)[0])

    def _take_over(self, *, graceful: bool) -> None:
        """Load the shard as another replica does: parked calls end, and join phases in progress are discarded."""
        now_ms = self.scheduler.now_ms
        if self.epoch and graceful:
            self._write(Entry("", "", 0, now_ms, ShardReleased(self._replica(), self.epoch, "handed over")))
        elif self.epoch:
            # It has no owner until the lease expires.
            self.scheduler.now_ms = now_ms = now_ms + 5_000
        self.epoch += 1
        self._shard.forget_unsettled()
        self._shard.rows()
        self._shard, loaded = Shard.load(self._shard.image(self._seq), self._shard.limits, now_ms)
        self._write(Entry("", "", 0, now_ms, ShardAcquired(self._replica(), self.epoch, "its turn")))
        self._take(loaded)
        self._waiting.clear()
        for member in self._members:
            if not member.dead:
                # Its call failed, so it sends another one.
                member.life += 1
                self.later(self.think(), member, member.resume, member.life)

    def _replica(self) -> str:
        return f"replica-{(self.shard_id + self.epoch) % 3}"

    # --- the life of a group ----------------------------------------------------------------------

    def _start_group(self, plan: GroupPlan) -> None:
        members = [PlayedMember(self, plan, number) for number in range(plan.members)]
        self._members.extend(members)
        begins_ms = self.rng.randrange(MINUTE_MS)
        for member in members:
            self.later(begins_ms + self.rng.randrange(200), member, member.start)
        self._every(plan.deploy_every_ms, lambda: self._deploy(members))
        self._every(plan.crash_every_ms, lambda: self._crash(self.rng.choice(members)))
        self._every(plan.pause_every_ms, lambda: self._pause(self.rng.choice(members)))
        self._every(
            plan.scale_every_ms, lambda: self._restart(members[-1], self.rng.randrange(10, 90) * 1_000, "scaled in")
        )

    def _deploy(self, members: list[PlayedMember]) -> None:
        """Restart the members one after the other."""
        for place, member in enumerate(members):
            self.scheduler.after(place * 20_000, None, self._restart, member, 2_000, "shutting down")

    def _restart(self, member: PlayedMember, away_ms: int, reason: str) -> None:
        if not member.dead:
            member.leave(reason)
            self.scheduler.after(away_ms, None, member.start)

    def _crash(self, member: PlayedMember) -> None:
        if not member.dead:
            member.crash()
            self.scheduler.after(self.rng.randrange(5, 300) * 1_000, None, member.start)

    def _pause(self, member: PlayedMember) -> None:
        """Pause a member, as a long garbage collection or a suspended machine does."""
        member.paused_until_ms = self.scheduler.now_ms + int(member.plan.session_timeout_ms * (1 + self.rng.random()))

    def _every(self, mean_ms: int, act: Callable[[], None], *, exactly: bool = False) -> None:
        if mean_ms <= 0:
            return

        def again() -> None:
            act()
            self._every(mean_ms, act, exactly=exactly)

        self.scheduler.after(mean_ms if exactly else 1 + int(self.rng.expovariate(1 / mean_ms)), None, again)
