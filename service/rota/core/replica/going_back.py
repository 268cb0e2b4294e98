"""Whether the store went back to an earlier state: a restored backup, a failover to a standby that was behind.

Then lines that were answered for are gone, and with them generations and epochs that would be granted once more. So a
replica remembers the latest that it knew of each shard, and compares each answer of the store with what it knew when it
asked: reads of the owners, claims, and renewals, which say where a quiet shard's journal ends. Where all lines are
there, the store may still have lost what users' own transactions had committed beside them: then it refuses to append
what the owner had taken in, although the shard is the owner's and its journal ends where the owner's memory does.

Where the store went back, all shards are given up, for there is one store. Before any is claimed again, the replica
raises the shard's *floor* in the store: no group grants a generation up to it, no claim gets an epoch up to it. The
floor outlives this replica, and binds whichever replica claims the shard.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rota.core.group.rows import ShardImage
from rota.core.group.shard import Shard
from rota.core.replica.owned_shard import OwnedShard
from rota.core.replica.ports import EPOCHS_SKIPPED, Floor, Renewal, ShardClaim, ShardOwner
from rota.protocol.limits import GENERATIONS_RAISED

MOST_LOST_FACTS = 20
"""How many of a group's lost facts its line in the journal names; the log names as many of a shard."""


class Known(NamedTuple):
    """The latest that was known of a shard."""

    epoch: int
    replica_id: str
    last_seq: int


NEVER = Known(0, "", 0)


class Asked(NamedTuple):
    """What this replica knew when it sent a statement. The answer is compared with this, not with what was learned
    while it was under way.
    """

    known: Mapping[int, Known]
    refused: Mapping[int, Known]
    """Shards that were dropped because the store refused to append, as they were then."""
    times_back: int


class Setback(NamedTuple):
    """A shard of which the store has lost lines, or may have. Where `known` is `found`: commits beside the journal."""

    shard_id: int
    known: Known
    found: Known
    generation_floor: int
    """As it is found."""
    is_restored: bool = False
    """The journal has a new incarnation: an administrator has raised the floors."""


class LostFact(NamedTuple):
    """A number of a group that was higher, as a `generation`, or as an offset: `topic/partition`."""

    namespace: str
    group_id: str
    what: str
    before: int
    after: int


class _Dropped(NamedTuple):
    """A shard that this replica served, as it was when it was dropped."""

    epoch: int
    durable_seq: int
    lease_until_ms: int
    highest_generation: int
    shard: Shard | None
    """None once its facts are known to be in the store."""


class StoreMemory:
    """What one replica remembers of its store."""

    def __init__(self, replica_id: str) -> None:
        self.owned: Mapping[int, OwnedShard] = {}
        """The shards that the replica serves, as they are at any time."""
        self.incarnation = ""
        self.setbacks: list[Setback] = []
        """Found, and not yet reacted to."""
        self.floors: dict[int, Floor] = {}
        """To be raised in the store before anything is claimed."""
        self.to_compare: dict[int, Shard] = {}
        """Memory of shards that the store has taken back, to be compared with its rows."""
        self.lost: dict[int, dict[tuple[str, str], tuple[tuple[str, int, int], ...]]] = {}
        """The losses, for the journal, until the shard is served again."""
        self._replica_id = replica_id
        self._known: dict[int, Known] = {}
        self._epochs: dict[int, int] = {}
        """The highest epoch of each shard that was ever known, also where the store has lost it."""
        self._floors: dict[int, int] = {}
        """The highest generation floor of each shard that was ever read, also where the store has lost it."""
        self._dropped: dict[int, _Dropped] = {}
        self._refused: dict[int, Known] = {}
        self._unsure: dict[int, int] = {}
        """Shards that lost generations of which this replica does not know how many, with their floors when that was
        found: a later floor is above them."""
        self._raised: dict[int, int] = {}
        """The floors that this replica has raised since it last served these shards."""
        self._times_back = 0

    # --- comparing --------------------------------------------------------------------------------

    def ask(self) -> Asked:
        """The present knowledge: BEFORE a statement is sent."""
        mine = {each.shard_id: Known(each.epoch, self._replica_id, each.durable_seq) for each in self.owned.values()}
        return Asked({**self._known, **mine}, dict(self._refused), self._times_back)

    def compare_owners(self, owners: Iterable[ShardOwner], asked: Asked) -> None:
        """A read of the owners was answered."""
        if asked.times_back != self._times_back:
            return  # It was sent before the last setback was found, and is compared with older knowledge.
        rows = {owner.shard_id: owner for owner in owners}
        incarnation = next((each.incarnation for each in rows.values()), self.incarnation)
        is_another = bool(self.incarnation) and incarnation != self.incarnation
        self.incarnation = incarnation
        for shard_id, known in asked.known.items():
            row = rows.get(shard_id)
            found = Known(row.epoch, row.replica_id, row.last_seq) if row is not None else NEVER
            began_at = row.claimed_seq if row is not None else None
            if is_another or is_setback(known, found, began_at) or asked.refused.get(shard_id) == found:
                floor = row.generation_floor if row is not None else 0
                self._note_setback(Setback(shard_id, known, found, floor, is_another))
            elif not self.setbacks:
                # The reaction to a setback compares them: an earlier read may have shown it, and is known by now.
                self._forget_facts(shard_id)
        for shard_id, row in rows.items():
            self._learn(shard_id, Known(row.epoch, row.replica_id, row.last_seq))
            self._floors[shard_id] = max(row.generation_floor, self._floors.get(shard_id, 0))

    def is_outdated(self, row: ShardOwner) -> bool:
        """Whether a later epoch of the shard is known, and the store did not go back."""
        is_setback_found = any(each.shard_id == row.shard_id for each in self.setbacks)
        return not is_setback_found and row.epoch < self._known.get(row.shard_id, NEVER).epoch

    def compare_claims(self, claims: Iterable[ShardClaim], asked: Asked) -> None:
        """Shards were claimed."""
        if asked.times_back != self._times_back:
            return
        for claim in claims:
            known = asked.known.get(claim.shard_id, NEVER)
            found = Known(claim.former_epoch, claim.former_replica_id, claim.last_seq)
            if is_setback(known, found) or asked.refused.get(claim.shard_id) == found:
                self._note_setback(Setback(claim.shard_id, known, found, claim.generation_floor))
            self._learn(claim.shard_id, Known(claim.epoch, self._replica_id, claim.last_seq))

    def compare_images(self, loaded: Iterable[tuple[ShardClaim, ShardImage]]) -> None:
        """Claimed shards were loaded, some time after the claim."""
        for claim, image in loaded:
            known = Known(claim.epoch, self._replica_id, claim.last_seq)
            found = known._replace(last_seq=image.last_seq)
            if is_setback(known, found):
                self._note_setback(Setback(claim.shard_id, known, found, claim.generation_floor))

    def compare_renewals(self, renewals: Iterable[Renewal], asked: Asked) -> None:
        """Leases were renewed. A shard that was dropped meanwhile is compared, too."""
        if asked.times_back != self._times_back:
            return
        for renewal in renewals:
            known = asked.known[renewal.shard_id]
            found = Known(known.epoch, known.replica_id, renewal.last_seq)
            if is_setback(known, found):
                self._note_setback(Setback(renewal.shard_id, known, found, renewal.generation_floor))

    def note_dropped(self, owned: OwnedShard) -> None:
        """A shard is not served any more."""
        self._dropped[owned.shard_id] = _Dropped(
            owned.epoch, owned.durable_seq, owned.lease_until_ms, owned.shard.highest_generation, owned.shard
        )
        known = Known(owned.epoch, self._replica_id, owned.durable_seq)
        self._learn(owned.shard_id, known)
        if owned.was_refused:
            self._refused[owned.shard_id] = known

    def note_released(self, shard_id: int) -> None:
        """A shard was dropped because its lease is released: another replica may claim it at once."""
        last = self._dropped.get(shard_id)
        if last is not None:
            self._dropped[shard_id] = last._replace(lease_until_ms=0)

    def note_served(self, shard_id: int) -> None:
        """A shard is served again: from here on its memory is that of the owned shard."""
        self._dropped.pop(shard_id, None)
        self._raised.pop(shard_id, None)
        self._refused.pop(shard_id, None)
        self.lost.pop(shard_id, None)

    # --- claiming ---------------------------------------------------------------------------------

    def known_epochs(self) -> dict[int, int]:
        """The highest epoch of each shard that this replica has ever known: the next one is higher."""
        return dict(self._epochs)

    def is_unsure(self, claim: ShardClaim, now_ms: int) -> bool:
        """Whether a generation may have been granted that neither the store nor this replica knows of.

        After a failover that is so, unless the last lease that the store knows is this replica's and goes on: no other
        replica had the shard, and what this one has answered for is there.
        """
        if claim.generation_floor <= self._unsure.get(claim.shard_id, -1):
            return True
        if not claim.is_other_timeline or claim.generation_floor >= self._raised.get(claim.shard_id, sys.maxsize):
            return False
        last = self._dropped.get(claim.shard_id)
        is_ours = last is not None and (claim.former_epoch, claim.former_replica_id) == (last.epoch, self._replica_id)
        return last is None or not is_ours or claim.last_seq < last.durable_seq or now_ms >= last.lease_until_ms

    def far_floor(self, claim: ShardClaim, image: ShardImage) -> Floor:
        """A floor above whatever may have been granted, also after an earlier floor that the store has lost."""
        highest = max((row.generation_id for row in image.groups), default=0)
        known = max(highest, claim.generation_floor, self._floors.get(claim.shard_id, 0))
        return Floor(known + GENERATIONS_RAISED, claim.epoch)

    def note_floors(self, floors: Mapping[int, Floor]) -> None:
        """These floors are in the store: they are above whatever may have been granted."""
        for shard_id, floor in floors.items():
            self._floors[shard_id] = max(floor.generation_id, self._floors.get(shard_id, 0))
            if floor.generation_id:
                self._unsure.pop(shard_id, None)
                self._raised[shard_id] = floor.generation_id

    # --- after the store went back ------------------------------------------------------------------

    def take_setbacks(self, now_ms: int) -> None:
        """Decide on the floors, which are in `floors` then.

        AFTER the shards were given up: their memory says how far generations had come.
        """
        found, self.setbacks = self.setbacks, []
        for setback in found:
            # A drop since then has restored the former knowledge.
            self._known[setback.shard_id] = setback.found
            self._refused.pop(setback.shard_id, None)
            last = self._dropped.get(setback.shard_id)
            if last is not None and last.shard is not None:
                self.to_compare[setback.shard_id] = last.shard
            floor, former = self._floor_after(setback, now_ms), self.floors.get(setback.shard_id, Floor(0, 0))
            self.floors[setback.shard_id] = Floor(
                max(floor.generation_id, former.generation_id), max(floor.epoch, former.epoch)
            )

    def _floor_after(self, setback: Setback, now_ms: int) -> Floor:
        """Just above what this replica remembers, while its lease is not over: no other replica had the shard after it.
        Far above that, where another may have had it. A replica that remembers nothing leaves it to one that does, and
        raises the floor far when it claims the shard.
        """
        known, last = setback.known, self._dropped.get(setback.shard_id)
        if last is None or (last.epoch, self._replica_id) != (known.epoch, known.replica_id):
            if not setback.is_restored:
                self._unsure[setback.shard_id] = setback.generation_floor
            return Floor(0, known.epoch + EPOCHS_SKIPPED)
        is_all = now_ms < last.lease_until_ms
        generation_id = 1 + last.highest_generation + (0 if is_all else GENERATIONS_RAISED)
        # A claim of this replica may have succeeded although its answer was lost.
        return Floor(generation_id, known.epoch + EPOCHS_SKIPPED)

    def compare_rows(self, images: Iterable[ShardImage]) -> list[LostFact]:
        """What the store does not know any more of the shards `to_compare`."""
        facts = []
        for image in images:
            of_shard = lost_facts(self.to_compare.pop(image.shard_id), image)
            facts += of_shard
            by_group: dict[tuple[str, str], tuple[tuple[str, int, int], ...]] = {}
            for fact in of_shard:
                key = (fact.namespace, fact.group_id)
                if len(by_group.get(key, ())) < MOST_LOST_FACTS:
                    by_group[key] = (*by_group.get(key, ()), (fact.what, fact.before, fact.after))
            self.lost[image.shard_id] = by_group
        return facts

    # --- inside -----------------------------------------------------------------------------------

    def _note_setback(self, setback: Setback) -> None:
        if not self.setbacks:
            self._times_back += 1
        self.setbacks.append(setback)

    def _learn(self, shard_id: int, seen: Known) -> None:
        """Keep the later one: answers may come in another order than the statements were carried out in."""
        self._epochs[shard_id] = max(seen.epoch, self._epochs.get(shard_id, 0))
        known = self._known.get(shard_id, NEVER)
        if (seen.epoch, seen.last_seq) > (known.epoch, known.last_seq):
            self._known[shard_id] = seen

    def _forget_facts(self, shard_id: int) -> None:
        last = self._dropped.get(shard_id)
        if last is not None and last.shard is not None:
            self._dropped[shard_id] = last._replace(shard=None)


def is_setback(known: Known, found: Known, began_at: int | None = None) -> bool:
    """Whether the store's state cannot follow from its known state.

    `began_at` is the journal's last entry when the epoch that is found began, None if that is not known.
    """
    if found.epoch < known.epoch:
        return True
    if found.epoch == known.epoch:
        return known.epoch > 0 and (found.replica_id != known.replica_id or found.last_seq < known.last_seq)
    return (found.last_seq if began_at is None else began_at) < known.last_seq


def lost_facts(before: Shard, after: ShardImage) -> list[LostFact]:
    """Generations and committed offsets that were higher in memory than they are in the store's rows."""
    generations = {(row.namespace, row.group_id): row.generation_id for row in after.groups}
    offsets = {(row.namespace, row.group_id, row.topic, row.partition): row.offset for row in after.offsets}
    facts = []
    for (namespace, group_id), group in sorted(before.groups.items()):
        found = generations.get((namespace, group_id), 0)
        if group.generation_id > found:
            facts.append(LostFact(namespace, group_id, "generation", group.generation_id, found))
        for (topic, partition), row in sorted(group.offsets.items()):
            offset = offsets.get((namespace, group_id, topic, partition), -1)
            if row.offset > offset:
                facts.append(LostFact(namespace, group_id, f"{topic}/{partition}", row.offset, offset))
    return facts
