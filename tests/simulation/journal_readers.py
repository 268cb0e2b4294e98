"""Readers of the journal, and pruning behind them, while the replicas go on (S19)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.protocol.errors import LinesPruned
from rota.storage.pruning import horizon_ms, plan
from rota.testing.memory import MemoryReader
from tests.simulation.beside import Beside

if TYPE_CHECKING:
    from tests.simulation.world import World

PAGE = 40


class JournalReader:
    """It reads pages, and now and then says how far it has come. When it starts again, it goes on from there."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._tables = world.store.tables
        self._bookmark: MemoryReader = self._tables.register_reader(name)
        self._positions = dict(self._bookmark.positions)

    def read(self, shard_id: int) -> None:
        """S19: a page goes on where the last one ended, with the lines of the journal."""
        after_seq = self._positions.get(shard_id, 0)
        try:
            page = self._tables.read_events(shard_id, after_seq, PAGE)
        except LinesPruned as pruned:
            self._world.violation(f"S19 shard {shard_id}: a registered reader was not waited for: {pruned.detail}")
            self._positions[shard_id] = pruned.first_revision - 1
            return
        journal = self._world.history.journal[shard_id]
        for event in page:
            if event.seq != after_seq + 1:
                self._world.violation(f"S19 shard {shard_id}: line {event.seq} is read after line {after_seq}")
            elif (line := journal[event.seq - 1]).entry.record.kind != event.kind or line.epoch != event.epoch:
                self._world.violation(f"S19 shard {shard_id}: line {event.seq} is read as {event.kind}")
            after_seq = event.seq
        if not page and after_seq < len(journal):
            self._world.violation(f"S19 shard {shard_id}: no line is read after line {after_seq} of {len(journal)}")
        self._positions[shard_id] = after_seq

    def keep_bookmark(self) -> None:
        self._bookmark.positions.update(self._positions)

    def start_again(self) -> None:
        self._positions = dict(self._bookmark.positions)


class Pruning(Beside):
    """Lines are read, and deleted by the rule of production; a "day" of the simulated database is a second or so."""

    name = "prune"
    every_ms = 250

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._day_ms = self.rng.choice((500, 1_500, 3_000))
        self._readers: dict[str, JournalReader] = {}

    def act(self) -> None:
        whim = self.rng.random()
        if whim < 0.1:
            name = self.rng.choice(("lake", "audit"))
            if name in self._readers and self.rng.random() < 0.3:
                del self._readers[name], self.world.store.tables.readers[name]
            elif name not in self._readers:
                self._readers[name] = JournalReader(self.world, name)
        elif whim < 0.3:
            self._prune()
        elif self._readers:
            self._use(self.rng.choice([*self._readers.values()]))

    def stop(self) -> None:
        """All readers read the rest of the journal."""
        for reader in self._readers.values():
            for shard_id in range(self.world.profile.shards):
                reader.read(shard_id)

    def _use(self, reader: JournalReader) -> None:
        whim = self.rng.random()
        if whim < 0.15:
            self.world.sometimes("a reader of the journal starts again at its bookmark")
            reader.start_again()
        elif whim < 0.4:
            reader.keep_bookmark()
        else:
            reader.read(self.rng.randrange(self.world.profile.shards))

    def _prune(self) -> None:
        tables, keep_days = self.world.store.tables, self.rng.choice((1, 1, 2))
        before = [tables.load(shard_id) for shard_id in range(self.world.profile.shards)]
        former = tables.first_seqs()
        old = tables.last_before(horizon_ms(self.world.store.clock_ms(), keep_days, self._day_ms))
        pruned = plan(old, former, list(tables.readers.values()))
        for shard_id, end in pruned.up_to.items():
            tables.prune_shard(shard_id, end)
        firsts = tables.first_seqs()
        if sum(firsts.values()) - sum(former.values()) != pruned.lines:
            self.world.violation(f"S19 {pruned}, but the first lines were {former} and are {firsts}")
        for image in before:
            # A replica loads rows, which pruning leaves alone.
            if tables.load(image.shard_id) != image:
                self.world.violation(f"S14 shard {image.shard_id}: pruning has changed its rows")
        for shard_id in pruned.up_to:
            self._check_age(shard_id, firsts[shard_id], keep_days)
        if pruned.lines:
            self.world.sometimes("the journal is pruned")
        if pruned.held_by:
            self.world.sometimes("pruning waits for a reader")

    def _check_age(self, shard_id: int, first_seq: int, keep_days: int) -> None:
        """S19: lines go up to one that is older than the days to be kept."""
        young_ms = self.world.store.clock_ms() - keep_days * self._day_ms
        if all(line.entry.at_ms >= young_ms for line in self.world.history.journal[shard_id][first_seq - 2 :]):
            self.world.violation(
                f"S19 shard {shard_id}: lines of the last {keep_days} days before {first_seq} are gone"
            )
