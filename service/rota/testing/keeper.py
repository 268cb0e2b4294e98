"""A simulated replica's way to its shards: production's rounds (`rota.replica.leases`) against the simulated store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rota.replica import leases as step
from rota.replica.known_owners import KnownOwners
from rota.replica.leases import RETRY_MS, Do, Leases, Steps
from rota.replica.owned_shard import OwnedShard
from rota.replica.ports import Replica as Registered
from rota.replica.ports import SeenMembers, ShardClaim, ShardOwner, StoreUnavailable

if TYPE_CHECKING:
    from rota.group.rows import ShardImage
    from rota.testing.replica import Replica
    from rota.testing.world import World

FLUSH_MS = 500
POLL_MS = 5


class ShardKeeper:
    """One replica's side of the leases."""

    def __init__(self, world: World, replica: Replica) -> None:
        self._world = world
        self._replica = replica
        self.known = KnownOwners(replica.replica_id, world.profile.shards)
        self.known.on_setback = self.nudge
        registered = Registered(replica.replica_id, replica.replica_id)
        self.leases = Leases(registered, self.known, lease_ms=world.profile.lease_ms)
        self._in_round = False
        self._rounds = 0
        world.scheduler.after(int(world.rng.random() * 50), replica, self._begin_round, 0)

    def nudge(self) -> None:
        """There is a reason for a round: shards have become free, or one was given up."""
        if not self._in_round:
            self._world.scheduler.after(RETRY_MS, self._replica, self._begin_round, self._rounds)

    def release(self) -> None:
        """Stop in order: release all shards, then end."""
        self._rounds += 1
        # The round under way is not waited for, as where the store hangs: it gives back what it claims later.
        self.leases.is_leaving = True
        self._replica.peers.drain()
        self._run(self.leases.leave(), self._replica.end)

    # --- rounds ----------------------------------------------------------------------------------

    def _begin_round(self, number: int) -> None:
        """The round that comes after `number` others."""
        if number != self._rounds or self._in_round:
            return
        self._in_round = True
        self._rounds += 1
        began_ms = self._world.scheduler.now_ms
        steps = self.leases.round(self._replica.now())
        self._run(steps, lambda has_failed=False: self._end_round(began_ms, has_failed))

    def _end_round(self, began_ms: int, has_failed: bool) -> None:
        self._in_round = False
        if self.leases.is_leaving:
            return
        next_ms = self.leases.next_round_ms(began_ms, self._replica.now(), has_failed=has_failed)
        if not self.leases.is_complete:
            next_ms = max(next_ms, self._world.scheduler.now_ms + RETRY_MS)
        delay_ms = max(0, next_ms - self._world.scheduler.now_ms)
        self._world.scheduler.after(delay_ms, self._replica, self._begin_round, self._rounds)

    def _run(self, steps: Steps, done: Callable[..., None]) -> None:
        """Carry steps out, one after the other. `done` gets True where the store did not answer."""

        def go_on(advance: Callable[[], Do]) -> None:
            try:
                do = advance()
            except StopIteration:
                done()
            except StoreUnavailable:
                done(True)
            else:
                self._do(do, lambda answer: go_on(lambda: steps.send((answer, self._replica.now()))), fail)

        def fail() -> None:
            go_on(lambda: steps.throw(StoreUnavailable("no answer")))

        go_on(lambda: next(steps))

    def _do(self, do: Do, then: Callable[[Any], None], fail: Callable[[], None]) -> None:
        world, replica, leases = self._world, self._replica, self.leases
        tables, replica_id = world.store.tables, replica.replica_id
        match do:
            case step.ReadOwners():
                self.read_owners(then, fail)
            case step.Register():
                self._ask(lambda: tables.register(leases.replica, leases.lease_ms), then, fail)
            case step.Claim():
                self._ask(partial(self._claim, do), then, fail)
            case step.Load(claims, _):
                self._ask(lambda: [tables.load(claim.shard_id) for claim in claims], then, fail)
            case step.Serve():
                self._serve(do, then)
            case step.Renew(claims):
                renew = partial(tables.renew, list(claims), replica_id, leases.lease_ms)
                self._ask(renew, self._noting(claims, then), fail)
            case step.WentBack(setbacks):
                world.note_setbacks(replica, setbacks)
                then(None)
            case step.RaiseFloors(floors):
                self._ask(partial(tables.raise_floors, floors), then, fail)
            case step.ReportLost(facts):
                world.note_lost(facts)
                then(None)
            case step.RaiseGenerations(owned, floor):
                replica.carry_out(owned, owned.raise_generations(floor, replica.now()))
                then(None)
            case step.GiveUp(owned, reason):
                replica.drop(owned, reason)
                then(None)
            case step.Close(shards, reason):
                for owned in shards:
                    replica.carry_out(owned, owned.close(reason, replica.now()))
                self._flush(world.scheduler.now_ms + FLUSH_MS, then)
            case step.DropClosed(owned, reason, code, undecided):
                replica.drop(owned, reason, code, undecided=undecided)
                then(None)
            case step.Release(claims, deregisters):
                self._ask(lambda: self._release(list(claims), deregisters=deregisters), then, fail)
            case step.NotifyPeers():
                self._nudge_peers()
                then(None)

    def read_owners(self, then: Callable[[None], None], fail: Callable[[], None]) -> None:
        """Read the owners of all shards from the store."""
        sent_ms, asked = self._world.scheduler.now_ms, self.known.memory.ask()

        def read(owners: list[ShardOwner]) -> None:
            self.known.update(owners, sent_ms, self._world.scheduler.now_ms, asked)
            then(None)
            self._world.note_owners_read(self._replica, sent_ms)

        self._ask(self._world.store.tables.owners, read, fail)

    def _ask(self, statement: Callable[[], Any], then: Callable[[Any], None], fail: Callable[[], None]) -> None:
        """Have the store run a statement; a replica that has ended meanwhile does nothing with the answer."""
        self._world.store.submit(
            self._replica,
            lambda: (statement(),),
            self.leases.lease_ms // 2,
            lambda answer: fail() if answer is None else then(answer[0]),
            cut_off=self._replica.cut_off_from_store(),
        )

    def _claim(self, do: step.Claim) -> list[ShardClaim]:
        replica_id = self._replica.replica_id
        claims = self._world.store.tables.claim(
            do.shard_ids, replica_id, replica_id, self.leases.lease_ms, known_epochs=do.known_epochs
        )
        self._world.note_claims(claims, replica_id)
        return claims

    def _release(self, claims: list[ShardClaim], *, deregisters: bool) -> None:
        tables, replica_id = self._world.store.tables, self._replica.replica_id
        if deregisters:
            tables.deregister(replica_id)
        tables.release(claims, replica_id)

    def _serve(self, do: step.Serve, then: Callable[[None], None]) -> None:
        """Install the shards, each as soon as the rest of its sessions is known."""
        sessions, waiting = self._replica.sessions, {claim.shard_id for claim, _ in do.loaded}

        def install(claim: ShardClaim, image: ShardImage, seen: SeenMembers | None) -> None:
            self._install(claim, image, do, seen)
            waiting.discard(claim.shard_id)
            if not waiting:
                then(None)

        for claim, image in do.loaded:
            if sessions is None:
                install(claim, image, None)
            else:
                sessions.read(claim.shard_id, partial(install, claim, image))

    def _install(self, claim: ShardClaim, image: ShardImage, do: step.Serve, seen: SeenMembers | None) -> None:
        world = self._world
        is_newest = world.store.tables.epoch_of(claim.shard_id) == claim.epoch
        if image.last_seq != claim.last_seq and is_newest and not world.is_excused(claim.shard_id):
            world.violation(
                f"S11 shard {claim.shard_id}: journal grew from {claim.last_seq} to {image.last_seq} unowned"
            )
        owned, ready = OwnedShard.load(
            claim, image, world.limits, self._replica.now(), replica_id=self._replica.replica_id,
            lease_until_ms=do.lease_until_ms, seen=seen, lost=do.lost.get(claim.shard_id),
        )  # fmt: skip
        if not claim.generation_floor:
            # Else it has raised generations already, which the journal says after this shard's first line.
            world.store.note_loaded(owned.shard, claim.epoch)
        self.leases.install(owned)
        world.note_owner(self._replica, claim.shard_id)
        self._replica.carry_out(owned, ready)
        self._replica.peers.note_arrival()

    def _flush(self, until_ms: int, then: Callable[[Any], None]) -> None:
        """Wait until nothing waits for the store, or it is time."""
        if self._replica.group.is_idle or self._world.scheduler.now_ms >= until_ms:
            then(None)
        else:
            self._world.scheduler.after(POLL_MS, self._replica, self._flush, until_ms, then)

    def _noting(self, claims: Any, then: Callable[[Any], None]) -> Callable[[Any], None]:
        def noted(kept: Any) -> None:
            owned = self.leases.owned
            if any(claim.shard_id not in owned or owned[claim.shard_id].claim is not claim for claim in claims):
                self._world.sometimes("renewal answered after the shard was dropped")
            then(kept)

        return noted

    def _nudge_peers(self) -> None:
        for replica in self._world.replicas.values():
            if replica is not self._replica:
                self._world.scheduler.after(
                    1 + int(3 * self._world.rng.random()), replica, cast("Replica", replica).keeper.nudge
                )
