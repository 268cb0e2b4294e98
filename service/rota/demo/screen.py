"""The demo's output: a log, and at a terminal a live table below it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rota.demo.board import Board, BoardLine, name_of


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

    def mark(self, mark: str, style: str, text: str) -> None:
        """Write a line that starts with a mark."""
        self._console.print(Text.assemble("  ", (mark, style), f"  {text}"))

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
        held_by = Text(name_of(holder) if holder else "-", "red strike" if killed else "")
        bar = ProgressBar(total=end or 1, completed=done if end else 1, width=30, finished_style="green")
        table.add_row(str(partition), held_by, f"{done} of {end}", bar)
    return table
