"""The state of the demo from its journal, and its output: a log, and at a terminal a live table below it."""

from __future__ import annotations

import re
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rota.client import GroupEvent
from rota.core.types.consumer import decode_assignment
from rota.demo.work import TOPIC, Work
from rota.server.observability.timeline import why

_UUID = re.compile("-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class BoardLine:
    """A line to show, and its colour."""

    text: str
    style: str = ""


@dataclass
class Loss:
    """A worker that was killed: when, in which generation, and its unfinished work."""

    worker: str
    member_id: str
    generation_id: int
    unfinished: dict[int, int]
    """Offset by partition."""
    at: float = field(default_factory=time.monotonic)
    expired_revision: int | None = None
    handed_over: float | None = None
    """Seconds after the kill until the other workers were assigned its partitions."""
    taken_over: dict[int, tuple[str, float]] = field(default_factory=dict)
    """The worker that continued each partition, and the seconds after the kill."""
    late_commits: list[int] = field(default_factory=list)
    """Revisions of its commits after its expiry: there must be none."""


class Board:
    """Folds the group's journal. `lines_of` returns the lines to show for an event."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.done = [0] * len(work.partitions)
        self.holders: dict[int, str] = {}
        """Member id by partition, in the current generation."""
        self.members: tuple[str, ...] = ()
        self.generation_id = 0
        self.loss: Loss | None = None
        self.events: list[GroupEvent] = []

    @property
    def is_complete(self) -> bool:
        """Whether every partition's offset is at its end."""
        return all(done == self.work.end(partition) for partition, done in enumerate(self.done))

    def lines_of(self, event: GroupEvent) -> Iterator[BoardLine]:
        """Apply an event and yield its lines."""
        self.events.append(event)
        payload = event.payload
        match event.kind:
            case "rebalance_started":
                yield BoardLine(f"rebalance: {with_names(why(event.reason, payload['by']))}", "yellow")
            case "generation_completed":
                self.members, self.generation_id = tuple(payload["member_ids"]), event.generation_id
            case "assignment_synced":
                yield from self._assigned(event)
            case "member_expired":
                yield from self._expired(event)
            case "offsets_committed":
                yield from self._committed(event)

    def share_of(self, member_id: str) -> list[int]:
        """Return the partitions that a member holds."""
        return sorted(partition for partition, holder in self.holders.items() if holder == member_id)

    def lose(self, member_id: str) -> Loss:
        """Note that a member was killed just now."""
        unfinished = {p: self.done[p] for p in self.share_of(member_id) if self.done[p] < self.work.end(p)}
        self.loss = Loss(with_names(member_id), member_id, self.generation_id, unfinished)
        return self.loss

    def someone_in_the_middle(self) -> str | None:
        """Return a member that has done a third of its share and is in the middle of a partition."""
        for member_id in self.members:
            share = self.share_of(member_id)
            done, total = sum(self.done[p] for p in share), sum(self.work.end(p) for p in share)
            begun = any(0 < self.done[p] < self.work.end(p) for p in share)
            if begun and total <= 3 * done:
                return member_id
        return None

    def _assigned(self, event: GroupEvent) -> Iterator[BoardLine]:
        self.holders = {
            partition: member_id
            for member_id, assignment in event.payload["assignments"]
            for _, partition in decode_assignment(b64decode(assignment)).partitions
        }
        shares = (f"{with_names(member_id)} has {_ranges(self.share_of(member_id))}" for member_id in self.members)
        leader = with_names(event.payload["leader_id"])
        yield BoardLine(
            f"generation {event.generation_id}: {', '.join(shares)} (as {leader}, its leader, assigned)", "cyan"
        )
        if self.loss is not None and self.loss.handed_over is None and self.loss.member_id not in self.members:
            self.loss.handed_over = time.monotonic() - self.loss.at

    def _expired(self, event: GroupEvent) -> Iterator[BoardLine]:
        loss, member_id = self.loss, event.payload["member_id"]
        if loss is not None and loss.member_id == member_id:
            loss.expired_revision = event.revision
            seconds = time.monotonic() - loss.at
            yield BoardLine(f"{loss.worker} is removed, {seconds:.1f} s after the kill: {event.reason}", "yellow")
        else:
            yield BoardLine(f"{with_names(member_id)} is removed: {event.reason}", "red")

    def _committed(self, event: GroupEvent) -> Iterator[BoardLine]:
        member_id = event.payload["member_id"]
        for topic, partition, offset, *_ in event.payload["offsets"]:
            if topic != TOPIC:
                continue
            self.done[partition] = offset
            yield from self._taken_over(member_id, partition)
        if self.loss is not None and self.loss.expired_revision and member_id == self.loss.member_id:
            self.loss.late_commits.append(event.revision)

    def _taken_over(self, member_id: str, partition: int) -> Iterator[BoardLine]:
        loss = self.loss
        if loss is None or member_id == loss.member_id or partition not in loss.unfinished.keys() - loss.taken_over:
            return
        seconds = time.monotonic() - loss.at
        loss.taken_over[partition] = (with_names(member_id), seconds)
        place = f"file {loss.unfinished[partition]} of {self.work.end(partition)}"
        yield BoardLine(
            f"partition {partition}: {with_names(member_id)} continues for {loss.worker} at {place}, "
            f"{seconds:.1f} s after the kill",
            "green",
        )


def with_names(text: str) -> str:
    """Return a text with workers' names in place of their member ids, which start with them."""
    return _UUID.sub("", text)


def _ranges(numbers: list[int]) -> str:
    """Format `0-3, 7`; `nothing` for an empty list."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or "nothing"


class Screen:
    """Writes lines with the time since the start of the demo. Colours and the live table are for terminals only."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._began = time.monotonic()

    def say(self, line: BoardLine) -> None:
        """Write one line of the log."""
        seconds = time.monotonic() - self._began
        self._console.print(Text.assemble((f"{seconds:6.1f} s  ", "dim"), (line.text, line.style)))

    def show(self, what: RenderableType = "") -> None:
        """Write other output than a line of the log."""
        self._console.print(what)

    @contextmanager
    def live(self, board: Board) -> Iterator[None]:
        """Show the table of partitions below the log during the block."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=lambda: Group(Text(), partition_table(board)),
            console=self._console,
            refresh_per_second=10,
            transient=True,
        ):
            yield


def partition_table(board: Board) -> Table:
    """Return a table with the holder and progress of each partition."""
    table = Table("partition", "held by", "files", "progress", title=f"generation {board.generation_id}")
    for partition, done in enumerate(board.done):
        end = board.work.end(partition)
        holder = board.holders.get(partition)
        killed = board.loss is not None and holder == board.loss.member_id
        held_by = Text(with_names(holder) if holder else "-", "red strike" if killed else "")
        bar = ProgressBar(total=end or 1, completed=done if end else 1, width=30, finished_style="green")
        table.add_row(str(partition), held_by, f"{done} of {end}", bar)
    return table
