"""What must hold in every history of a group; the ids are those of docs/protocol.md's proofs (S1, S2 …)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from rota.core.group import records as r
from rota.core.group.records import TELLING, decode_entry, has_cause, wrong_cause
from rota.core.group.sessions import is_in_generation
from rota.core.group.shard import ShardState
from rota.core.group.state import COMPLETING_REBALANCE, STABLE
from rota.pipeline.tables import Line


class Finding(NamedTuple):
    """Something that must not be. `seq` is the line at which it shows, 0 where it is not one line's."""

    check: str
    shard_id: int
    namespace: str
    group_id: str
    seq: int
    text: str


class EpochSpan(NamedTuple):
    """The lines of a shard that have an epoch: the first with its group, and the number of the last."""

    shard_id: int
    epoch: int
    seq: int
    namespace: str
    group_id: str
    last_seq: int


class GroupAudit:
    """Replays one group with the service's own core, and looks at each step.

    Of a group without its first lines (not `whole`), only epochs and generations can be looked at.
    """

    def __init__(self, shard_id: int, *, whole: bool = True) -> None:
        self._shard = ShardState(shard_id)
        self._whole = whole
        self._generation_id: int | None = 0 if whole else None
        self._epoch = 0
        self._broken = False
        self._settled: set[str] = set()
        """All members that were in a generation."""
        self._telling: r.Record | None = None
        """The last record that can stand before a cause."""

    def add(self, line: Line) -> Iterator[tuple[str, str]]:
        """The checks that fail at this line, with the reason; none after a line that cannot be replayed."""
        if line.epoch < self._epoch:
            yield "epoch", f"epoch {line.epoch} after epoch {self._epoch}: an owner that was overtaken has written"
        if line.epoch > self._epoch:
            self._shard.forget_unsettled()
            self._telling = None
        self._epoch = line.epoch
        if self._broken:
            return
        try:
            yield from self._replay(line)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            self._broken = True
            yield "S14", f"{line.kind} cannot follow from the lines before: {error!r}"

    def _replay(self, line: Line) -> Iterator[tuple[str, str]]:
        names = ("at_ms", "namespace", "group_id", "generation_id", "kind", "reason")
        written: dict[str, Any] = {name: getattr(line, name) for name in names}
        entry = decode_entry({**written, "payload": json.loads(line.payload)})
        yield from self._generation(entry.record)
        yield from self._cause(entry.record)
        if self._whole:
            yield from self._before(entry)
            self._shard.replay(entry)

    def _generation(self, record: r.Record) -> Iterator[tuple[str, str]]:
        match record:
            case r.GenerationCompleted() | r.GroupEmptied() | r.AssignmentSynced(resync=True):
                if self._generation_id is not None and record.generation_id != self._generation_id + 1:
                    yield "S1", f"generation {record.generation_id} follows generation {self._generation_id}"
                self._generation_id = max(self._generation_id or 0, record.generation_id)
            case r.GenerationRaised():
                # A store that went back: the number jumps over all that may have been granted.
                if record.generation_id <= (self._generation_id or 0):
                    yield "S1", f"generation {self._generation_id} is raised to {record.generation_id}"
                self._generation_id = max(self._generation_id or 0, record.generation_id)
        match record:
            case r.GenerationCompleted():
                self._settled.update(record.member_ids)
            case r.MemberFenced():
                self._settled.add(record.new_member_id)

    def _cause(self, record: r.Record) -> Iterator[tuple[str, str]]:
        if has_cause(record) and (wrong := wrong_cause(record, self._telling)):
            yield "S21", wrong
        if isinstance(record, TELLING):
            self._telling = record

    def _before(self, entry: r.Entry) -> Iterator[tuple[str, str]]:
        record = entry.record
        group = self._shard.groups.get((entry.namespace, entry.group_id))
        match record:
            case r.GenerationCompleted() if record.leader_id not in record.member_ids:
                yield "S2", f"generation {record.generation_id} is led by {record.leader_id}, which is not in it"
            case r.AssignmentSynced() if group is not None:
                if group.state is not (STABLE if record.resync else COMPLETING_REBALANCE):
                    yield "S6", f"generation {record.generation_id} is assigned in {group.state.value}"
                if record.leader_id != group.generation_leader_id:
                    yield "S6", f"assigned by {record.leader_id}, but {group.generation_leader_id} leads"
                if strangers := [member for member, _ in record.assignments if member not in group.members]:
                    yield "S6", f"assigned to {strangers[0]}, which is no member"
            case r.OffsetsCommitted(reason=r.IN_USERS_TRANSACTION):
                # The fence in the store checked it, before this line: its member may have left since then.
                if record.member_id and record.member_id not in self._settled:
                    yield "S9", f"a user's transaction of {record.member_id}, which was in no generation, was accepted"
            case r.OffsetsCommitted() if (
                record.member_id and group is not None and not is_in_generation(group, record.member_id)
            ):
                yield "S9", f"a commit of {record.member_id}, which is not in the generation, was accepted"


def epochs_mixed(spans: Iterable[EpochSpan]) -> Iterator[Finding]:
    """First lines of an epoch after which an older one goes on, in whatever group: of these two lines one is wrong.

    The spans come ordered by shard and epoch. An epoch that was raised on a shard's last line alone looks like that
    of a new owner.
    """
    for shard_id, of_shard in groupby(spans, key=lambda span: span.shard_id):
        older: EpochSpan | None = None
        for span in of_shard:
            if older is not None and older.last_seq > span.seq:
                text = f"epoch {span.epoch}, but line {older.last_seq} of the shard has epoch {older.epoch}"
                yield Finding("epoch", shard_id, span.namespace, span.group_id, span.seq, text)
            if older is None or span.last_seq > older.last_seq:
                older = span
