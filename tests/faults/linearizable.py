"""Is a history of commits, reads and checks of fences linearizable? Wing and Gong's search, with Lowe's memory.

It shares no code with the simulator's checks, so that a wrong rule there is not wrong here as well. It reads no journal
either: what clients sent and what they were answered has to suffice.

Each group is one object. Its state is the highest generation that took part in an operation, and the last commit of
each partition. The generation may rise between any two operations, and never falls. An operation takes effect at one
point between its start and its end. Places in time are numbers of one sequence, as the recorder is one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Partition = tuple[str, int]
NEVER = 2**62
"""The end of an operation whose outcome its client never learnt."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on one group by one client, from the request to the answer."""

    name: str
    """Another one for each operation."""
    start: int
    end: int
    is_write: bool = False
    marks: Mapping[Partition, str] = field(default_factory=dict)
    """What it wrote to each partition, a mark that no other write has; or found there, empty if there was no commit."""
    generation_id: int = -1
    """The generation that was current at the operation; -1 if it says nothing about that."""
    above: int = -1
    """A generation that was no longer current: a request of it was rejected for that reason."""
    is_rejected: bool = False


class _State(NamedTuple):
    generation_id: int
    marks: tuple[str, ...]
    """The last commit by partition, in the order in which the search numbers them."""


def violation(operations: Iterable[Operation]) -> str:
    """The operation of one group that fits no order of all of them, and why; empty if such an order exists."""
    known = sorted(operations, key=lambda operation: operation.start)
    writes = {(partition, mark): each for each in known if each.is_write for partition, mark in each.marks.items()}
    first_reads = dict[str, int]()
    for read in (each for each in known if not each.is_write):
        for partition, mark in read.marks.items():
            write = writes.get((partition, mark))
            if mark and write is None:
                return f"{read.name} read {mark} in {partition}, which no client committed there"
            if write is not None and write.is_rejected:
                return f"{read.name} read the rejected commit {write.name}"
            if write is not None:
                first_reads[write.name] = min(first_reads.get(write.name, NEVER), read.end)
    finite = (replace(each, end=min(each.end, first_reads.get(each.name, NEVER))) for each in known)
    return _search([each for each in finite if _matters(each)])


def _matters(operation: Operation) -> bool:
    """Whether the operation restricts the order, given that a write took effect before the first read of it ended.

    A write of unknown outcome that no client read may as well not have happened. A rejected write changes nothing: only
    a rejection for its generation says something.
    """
    return operation.end != NEVER and (not operation.is_rejected or operation.above >= 0)


class _Place:
    """The start or the end of an operation, in the list of those that the search has not passed."""

    __slots__ = ("after", "before", "end", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.end: _Place | None = None
        """The place of the operation's end; None if this is one."""
        self.before: _Place | None = None
        self.after: _Place | None = None

    def take_out(self) -> None:
        for place in (self, self.end):
            if place is not None and place.before is not None:
                place.before.after = place.after
                if place.after is not None:
                    place.after.before = place.before

    def put_back(self) -> None:
        for place in (self.end, self):
            if place is not None and place.before is not None:
                place.before.after = place
                if place.after is not None:
                    place.after.before = place


def _search(operations: list[Operation]) -> str:
    """Depth first over the orders; the name of the operation at which the longest of them ends."""
    numbers = {
        partition: n
        for n, partition in enumerate(sorted({each for operation in operations for each in operation.marks}))
    }
    head = _linked(operations)
    state = _State(-1, ("",) * len(numbers))
    done, seen = 0, set[tuple[int, _State]]()
    taken: list[tuple[_Place, _State]] = []
    place, longest, stuck = head.after, -1, ""
    while head.after is not None:
        assert place is not None, "the list ends with the end of an operation, at which the search turns back"
        if place.end is not None:
            after = _applied(state, operations[place.number], numbers)
            reached = (done | 1 << place.number, after)
            if after is not None and reached not in seen:
                seen.add((reached[0], after))
                taken.append((place, state))
                done, state = reached[0], after
                place.take_out()
                place = head.after
            else:
                place = place.after
            continue
        # This operation has ended, and none of those that may come before it leads any further.
        if len(taken) > longest:
            longest, stuck = len(taken), _described(operations[place.number], state)
        if not taken:
            return stuck
        place, state = taken.pop()
        done &= ~(1 << place.number)
        place.put_back()
        place = place.after
    return ""


def _applied(state: _State, operation: Operation, numbers: dict[Partition, int]) -> _State | None:
    """The state after the operation; None if it cannot take effect in this one."""
    if 0 <= operation.generation_id < state.generation_id:
        return None
    generation_id = max(state.generation_id, operation.generation_id)
    if operation.is_rejected:
        return state._replace(generation_id=max(generation_id, operation.above + 1))
    marks = list(state.marks)
    for partition, mark in operation.marks.items():
        number = numbers[partition]
        if operation.is_write:
            marks[number] = mark
        elif marks[number] != mark:
            return None
    return _State(generation_id, tuple(marks))


def _described(operation: Operation, state: _State) -> str:
    return f"{operation.name} fits no order; the longest one reached generation {state.generation_id}"


def _linked(operations: list[Operation]) -> _Place:
    """The places of all starts and ends in the order of time, after a place that stands for none."""
    places = list(_places(operations))
    head = _Place(-1)
    last = head
    for _, place in sorted(places, key=lambda pair: pair[0]):
        last.after, place.before = place, last
        last = place
    return head


def _places(operations: list[Operation]) -> Iterator[tuple[tuple[int, int], _Place]]:
    for number, operation in enumerate(operations):
        start = _Place(number)
        start.end = _Place(number)
        # At the same place in time a start comes first: such operations are concurrent.
        yield (operation.start, 0), start
        yield (operation.end, 1), start.end
