"""A world whose replicas run the production runtime; its members, network, faults and rules are the simulator's."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rota.protocol.ids import shard_of
from rota.protocol.messages import Request, parks_for_ms
from rota.testing.history import History
from rota.testing.many import quiet_logs
from rota.testing.profiles import Profile, profile_of
from rota.testing.runtimes.liveness import LivenessServer
from rota.testing.runtimes.nemesis import RuntimeNemesis
from rota.testing.runtimes.replica import LONGEST_ANSWER_MS, RuntimeReplica
from rota.testing.runtimes.store import RuntimeStore
from rota.testing.world import World

SAFETY_MS = 6_000
LONG_SESSION_MS = (6_000, 7_000)
"""Long enough for a member to outlive the silence of its owner, and for its owner to change."""
QUIET_LEASES = 3
"""After peace has come, so many leases later every replica serves what is due to it."""


class RuntimeWorld(World):
    """`run` plays both phases; then no call may still wait, and every replica must be ready."""

    store: RuntimeStore
    replicas: dict[str, RuntimeReplica]  # type: ignore[assignment]
    nemesis: RuntimeNemesis

    rotates = True

    def __init__(self, seed: int, profile: Profile | None = None) -> None:
        draws = Random(f"runtimes/{seed}")
        self.is_over = False
        self.processes: list[RuntimeReplica] = []
        """Every incarnation of every replica."""
        self.cut_links: dict[frozenset[str], int] = {}
        """Until when two replicas cannot reach each other."""
        self.late_leases_until_ms = 0
        """Leases that are asked for before then are granted at once, and the answers come late."""
        replicas = draws.choice((1, 2, 2, 3, 3, 3, 4))
        self.steals = replicas == 1 and draws.random() < 0.5
        """An embedded store: whoever opens it takes all shards at once."""
        self.has_side_door = replicas > 1 and draws.random() < 0.7
        self.are_turns_interrupted = draws.random() < 0.25
        """May messages arrive between any two turns of an event loop, or only when it has nothing to do?"""
        self.forwards = draws.random() < 0.85
        self.liveness = LivenessServer(self._now_ms) if replicas > 1 and draws.random() < 0.5 else None
        self.shares_long_sessions = self.is_sluggish = False
        super().__init__(seed, self._profile(draws, profile or profile_of(seed), replicas))
        self.served = frozenset()
        # While a transaction takes its time, several shards decide what goes into the next one.
        self.is_sluggish = draws.random() < 0.3
        self.store.usual_ms = 60 if self.is_sluggish else 3
        self.working = draws.random() < 0.6
        """Where no member commits, an owner that has lost its lease is not found out by its next write."""

    def _profile(self, draws: Random, base: Profile, replicas: int) -> Profile:
        """The simulator's profile, in a shorter time with more faults; with sessions worth sharing in some worlds."""
        profile = replace(
            base,
            replicas=replicas,
            shards=draws.choice((1, 2, 3)),
            safety_ms=SAFETY_MS + base.quiet_ms,
            churn_every_ms=base.churn_every_ms * 7 // 10,
            fault_every_ms=base.fault_every_ms * 6 // 10,
        )
        self.shares_long_sessions = self.liveness is not None and base.churn_every_ms > 0 and draws.random() < 0.6
        if not self.shares_long_sessions:
            return profile
        return replace(
            profile, session_ms=LONG_SESSION_MS, churn_every_ms=3_000, fault_every_ms=2_000, safety_ms=12_000
        )

    def is_link_cut(self, one: str, other: str) -> bool:
        until_ms = self.cut_links.get(frozenset((one, other)), 0)
        return self.scheduler.now_ms < until_ms

    def _now_ms(self) -> int:
        return self.scheduler.now_ms

    def _new_store(self) -> RuntimeStore:
        return RuntimeStore(self.scheduler, self.rng, self.profile, self.history)

    def new_replica(self, replica_id: str) -> RuntimeReplica:
        replica = RuntimeReplica(self, replica_id)
        self.processes.append(replica)
        return replica

    def _new_nemesis(self) -> RuntimeNemesis:
        return RuntimeNemesis(self)

    def new_owner_id(self, replica_id: str) -> str:
        """Each process registers under an id of its own."""
        return f"{replica_id}-{len(self.processes)}"

    def restart(self, replica_id: str) -> None:
        """The replica's process has ended; another one takes its place soon."""
        delay_ms = 50 + int(self.rng.random() * 2_500)
        self.scheduler.after(delay_ms, None, self.nemesis.start_replica, replica_id)

    def shard_of(self, request: Request) -> int:
        name = getattr(request, "group_id", "") or getattr(request, "topic", "")
        return shard_of(request.namespace, name, self.profile.shards)

    # --- running ---------------------------------------------------------------------------------

    def run(self) -> History:
        with quiet_logs():
            history = super().run()
            self.is_over = True
            for process in self.processes:
                process.end()
        return history

    def violation(self, text: str) -> None:
        if not self.is_over:
            super().violation(text)

    def _check_quiet(self) -> None:
        super()._check_quiet()
        self.scheduler.run_until(self.scheduler.now_ms + QUIET_LEASES * self.profile.lease_ms)
        for replica in self.replicas.values():
            self._check_calls(replica)
            self._check_ready(replica)

    def _check_calls(self, replica: RuntimeReplica) -> None:
        """L6: every call at a running replica ends by its deadline."""
        for delivery, since_ms in replica.waiting():
            waited_ms = self.scheduler.now_ms - since_ms
            if waited_ms > parks_for_ms(delivery.call.request) + LONGEST_ANSWER_MS:
                self.violation(f"L6 {delivery.call.request} has waited at {replica.owner_id} for {waited_ms} ms")

    def _check_ready(self, replica: RuntimeReplica) -> None:
        """L9: without faults a running replica serves every shard that is due to it."""
        is_ready, why = replica.local.ready()
        if replica.is_hindered() or is_ready:
            return
        self.violation(f"L9 {replica.owner_id} is not ready: {why}")
