"""A world with replicas on the production runtime; its members, network, faults and rules are the simulator's."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from rota.protocol.messages import Request, parks_for_ms
from rota.replica.forwarding import shard_of_request
from rota.testing.history import History
from rota.testing.many import quiet_logs
from rota.testing.profiles import Parts, Profile, profile_of, with_parts
from rota.testing.runtimes.nemesis import RuntimeNemesis
from rota.testing.runtimes.replica import LONGEST_ANSWER_MS, RuntimeReplica
from rota.testing.runtimes.served import RegisteredTopics
from rota.testing.runtimes.store import RuntimeStore
from rota.testing.world import World

SAFETY_MS = 6_000
LONG_SAFETY_MS = 12_000
"""The same where sessions are long."""
QUIET_LEASES = 3
"""This many leases after the last fault, and its own start, every replica serves its assigned shards."""


class RuntimeWorld(World):
    """`run` plays both phases; then no call may still wait, and every replica must be ready."""

    store: RuntimeStore
    replicas: dict[str, RuntimeReplica]  # type: ignore[assignment]
    nemesis: RuntimeNemesis
    topics: RegisteredTopics

    def __init__(self, seed: int, profile: Profile | None = None) -> None:
        draws = Random(f"runtimes/{seed}")
        self.is_over = False
        self.processes: list[RuntimeReplica] = []
        """Every incarnation of every replica."""
        self.late_leases_until_ms = 0
        """Leases that are asked for before then are granted at once, and the answers come late."""
        replicas = draws.choice((1, 2, 2, 3, 3, 3, 4))
        self.steals = replicas == 1 and draws.random() < 0.5
        """An embedded store: its only process takes all shards at once."""
        self.has_side_door = replicas > 1 and draws.random() < 0.7
        self.are_turns_interrupted = draws.random() < 0.25
        """May messages arrive between any two turns of an event loop, or only when it has nothing to do?"""
        forwards = draws.random() < 0.85
        has_liveness = replicas > 1 and draws.random() < 0.5
        self.is_sluggish = False
        base = self._profile(draws, profile or profile_of(seed), replicas)
        has_long = has_liveness and base.churn_every_ms > 0 and draws.random() < 0.6
        is_calm = has_long and Random(f"calm/{seed}").random() < 0.35
        beside = frozenset() if is_calm else self._beside(seed, base)
        parts = Parts(forwards or is_calm, has_liveness, has_long, is_calm, beside=beside)
        if has_long:
            base = replace(with_parts(base, parts), safety_ms=LONG_SAFETY_MS)
        super().__init__(seed, base, parts)
        self.served = frozenset(self.groups[:1] if self._is_served(seed) else ())
        if self.served:
            self.scheduler.after(0, None, self.topics.changed)
        # While a transaction takes its time, several shards decide what goes into the next one.
        self.is_sluggish = draws.random() < 0.3
        self.store.usual_ms = 60 if self.is_sluggish else 3
        self.working = draws.random() < 0.6 and not is_calm
        """Where no member commits, an owner that has lost its lease is not found out by its next write."""

    def _profile(self, draws: Random, base: Profile, replicas: int) -> Profile:
        """The simulator's profile, in a shorter time with more faults."""
        return replace(
            base,
            replicas=replicas,
            shards=draws.choice((1, 2, 3)),
            safety_ms=SAFETY_MS + base.quiet_ms,
            churn_every_ms=base.churn_every_ms * 7 // 10,
            fault_every_ms=base.fault_every_ms * 6 // 10,
        )

    def _beside(self, seed: int, profile: Profile) -> frozenset[str]:
        """Users' own transactions commit progress in some of the worlds where they can, and groups are frozen in some
        of those whose generations may change (L5).
        """
        has_commits = self.has_side_door and Random(f"user_transaction?{seed}").random() < 0.35
        has_freezes = bool(profile.churn_every_ms) and Random(f"freeze_group?{seed}").random() < 0.25
        drawn = {"user_transaction": has_commits, "freeze_group": has_freezes}
        return frozenset(name for name, is_drawn in drawn.items() if is_drawn)

    def _is_served(self, seed: int) -> bool:
        """Whether the first group leaves assigning to the server."""
        return not self.cooperative and Random(f"served?{seed}").random() < 0.15

    def _new_topics(self) -> RegisteredTopics:
        return RegisteredTopics(self)

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

    def shard_of(self, request: Request) -> int:
        return shard_of_request(request, self.profile.shards)

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
        settles_ms = QUIET_LEASES * self.profile.lease_ms
        self.scheduler.run_until(self.scheduler.now_ms + settles_ms)
        # A replica that the last faults stopped may come back late.
        last_start_ms = max(replica.started_ms for replica in self.replicas.values())
        self.scheduler.run_until(max(self.scheduler.now_ms, last_start_ms + settles_ms))
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
