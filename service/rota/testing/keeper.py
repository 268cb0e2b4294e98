"""How a simulated replica comes by its shards: leases claimed, renewed and given back, and loading what was claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.group.records import Entry, ShardAcquired
from rota.group.rows import ShardImage
from rota.group.shard import Shard
from rota.runtime.ports import ShardClaim
from rota.testing.facts import facts_of
from rota.testing.owned import OwnedShard

if TYPE_CHECKING:
    from rota.testing.replica import Replica
    from rota.testing.world import World

LEASE_MARGIN_MS = 20


class ShardKeeper:
    """One replica's side of the leases. It counts each lease from before it asked for it."""

    def __init__(self, world: World, replica: Replica) -> None:
        self._world = world
        self._replica = replica
        self.claiming = False
        self.loading: set[int] = set()
        world.scheduler.after(int(world.rng.random() * 50), replica, self.look_after_shards)

    def look_after_shards(self) -> None:
        """Renew what is ours, take what is nobody's."""
        profile = self._world.profile
        for shard_id in list(self._replica.owned):
            self._replica.serving(shard_id)
        if self._replica.owned:
            self._renew(dict(self._replica.owned))
        ours = self.loading | self._replica.owned.keys()
        missing = [shard_id for shard_id in range(profile.shards) if shard_id not in ours]
        if missing and not self.claiming:
            self._claim(missing)
        jitter_ms = int(self._world.rng.random() * profile.lease_ms / 10)
        self._world.scheduler.after(profile.lease_ms // 4 + jitter_ms, self._replica, self.look_after_shards)

    def _renew(self, sent: dict[int, OwnedShard]) -> None:
        sent_ms = self._world.scheduler.now_ms
        lease_ms = self._world.profile.lease_ms
        claims = [ShardClaim(shard_id, owned.epoch, 0) for shard_id, owned in sent.items()]
        tables = self._world.store.tables
        self._world.store.submit(
            self._replica,
            lambda: tables.renew(claims, self._replica.replica_id, lease_ms),
            lease_ms,
            lambda held: self.renewed(sent, held, sent_ms + lease_ms - LEASE_MARGIN_MS),
            cut_off=self._replica.cut_off_from_store(),
        )

    def renewed(self, sent: dict[int, OwnedShard], held: list[int] | None, lease_until_ms: int) -> None:
        """The renewal's answer. It says nothing of a shard that was dropped meanwhile, even if we have it again."""
        for shard_id, owned in sent.items():
            if owned.dropped:
                self._world.sometimes("renewal answered after the shard was dropped")
            elif held is not None and shard_id in held:
                owned.lease_until_ms = max(owned.lease_until_ms, lease_until_ms)
            elif held is not None:
                self._replica.drop(owned, "renewal refused")

    def _claim(self, shard_ids: list[int]) -> None:
        self.claiming = True
        sent_ms = self._world.scheduler.now_ms
        lease_ms = self._world.profile.lease_ms
        tables = self._world.store.tables

        def statement() -> tuple[list[ShardClaim], dict[int, str]]:
            claims = tables.claim(shard_ids, self._replica.replica_id, self._replica.replica_id, lease_ms)
            self._world.note_claims(claims, self._replica.replica_id)
            return claims, {owner.shard_id: owner.replica_id for owner in tables.owners()}

        self._world.store.submit(
            self._replica,
            statement,
            lease_ms,
            lambda answer: self._claimed(answer, sent_ms + lease_ms - LEASE_MARGIN_MS),
            cut_off=self._replica.cut_off_from_store(),
        )

    def _claimed(self, answer: tuple[list[ShardClaim], dict[int, str]] | None, lease_until_ms: int) -> None:
        self.claiming = False
        if answer is not None:
            claims, self._replica.owner_hints = answer
            for claim in claims:
                self._load(claim, lease_until_ms)

    def _load(self, claim: ShardClaim, lease_until_ms: int) -> None:
        """Read the shard's rows. Nothing else is done for the shard meanwhile: what comes back is of this claim."""
        tables = self._world.store.tables
        self.loading.add(claim.shard_id)

        def loaded(image: ShardImage | None) -> None:
            self.loading.discard(claim.shard_id)
            if image is not None:
                self._install(claim, image, lease_until_ms)

        self._world.store.submit(
            self._replica,
            lambda: tables.load(claim.shard_id),
            max(lease_until_ms - self._world.scheduler.now_ms, 0),
            loaded,
            cut_off=self._replica.cut_off_from_store(),
        )

    def _install(self, claim: ShardClaim, image: ShardImage, lease_until_ms: int) -> None:
        world = self._world
        if lease_until_ms <= world.scheduler.now_ms:
            return  # We slept over it; somebody else may have the shard by now.
        if image.last_seq != claim.last_seq:
            world.violation(
                f"S11 shard {claim.shard_id}: journal grew from {claim.last_seq} to {image.last_seq} unowned"
            )
        shard, result = Shard.load(image, world.limits, self._replica.now_ms())
        world.store.loaded_facts[(claim.shard_id, claim.epoch)] = facts_of(shard)
        owned = OwnedShard(shard, claim.epoch, claim.last_seq, lease_until_ms)
        self._replica.owned[claim.shard_id] = owned
        world.note_owner(self._replica, claim.shard_id)
        acquired = ShardAcquired(self._replica.replica_id, claim.epoch, "its lease was over")
        result.records.append(Entry("", "", 0, self._replica.now_ms(), acquired))
        self._replica.take(owned, result)

    def release(self) -> None:
        """A graceful hand-over: stop answering, and end the leases now."""
        claims = [ShardClaim(shard_id, owned.epoch, 0) for shard_id, owned in self._replica.owned.items()]
        for owned in list(self._replica.owned.values()):
            self._replica.drop(owned, "released")
        tables, replica = self._world.store.tables, self._replica
        lease_ms = self._world.profile.lease_ms
        self._world.store.submit(replica, lambda: tables.release(claims, replica.replica_id), lease_ms, lambda _: None)
