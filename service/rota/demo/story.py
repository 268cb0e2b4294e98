"""The demo from start to end: start all processes, kill a worker in the middle, wait for the end, check."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import time
import uuid
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.text import Text

from rota.client import Client, connect
from rota.client.transports import HttpTransport
from rota.demo.board import Board, BoardLine, Screen, partition_table, with_names
from rota.demo.children import Child, ChildFailed, Children
from rota.demo.results import Fenced, Results
from rota.demo.work import TOPIC, Work, default_work
from rota.protocol.defaults import DEMO_SESSION_TIMEOUT_MS
from rota.protocol.messages import CommitOffsets, OffsetToCommit
from rota.server.observability.timeline import timeline_line

_LOOK_INTERVAL_S = 0.2
_COMMIT_TIMEOUT_MS = 5_000
_SILENCE_S = 60.0
"""Time without an event after which the demo fails."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options. `folder` is None for the project's own files."""

    url: str
    namespace: str
    folder: Path | None = None
    workers: int = 3
    partitions: int = 12
    rounds: int = 2
    session_timeout_ms: int = DEMO_SESSION_TIMEOUT_MS
    kill: bool = True


def run_demo(options: Options) -> bool:
    """Run the demo; return whether all checks pass. Raises `ChildFailed` if a process of the demo ends by itself."""
    with tempfile.TemporaryDirectory(prefix="rota-demo-") as folder, Children(Path(folder)) as children:
        try:
            return asyncio.run(_until_terminated(_Demo(options, Path(folder), children).run()))
        except asyncio.CancelledError:
            raise SystemExit(128 + signal.SIGTERM) from None


async def _until_terminated(demo: Coroutine[Any, Any, bool]) -> bool:
    """Run until SIGTERM, which ends the demo as Ctrl-C does: its processes and its folder are cleaned up."""
    running = asyncio.ensure_future(demo)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it is true. Each is checked at its source: results, offsets, journal, coordinator."""

    claim: str
    holds: bool


class _Demo:
    """One run."""

    def __init__(self, options: Options, folder: Path, children: Children) -> None:
        self._options = options
        self._folder = folder
        self._children = children
        self._screen = Screen()
        self._group_id = f"demo-{uuid.uuid4().hex[:8]}"
        self._work = self._choose_work().copied_to(folder / "input")
        self._board = Board(self._work)
        self._last_event_at = time.monotonic()

    async def run(self) -> bool:
        expected_words = await asyncio.to_thread(self._work.count_directly)
        url = await self._find_server()
        with Results.create(self._folder / "results.db", len(self._work.partitions)) as results:
            workers = self._start_workers(url)
            async with connect(url, self._options.namespace) as client:
                await self._until_complete(client, workers)
                checks = await self._check_work(results, expected_words, client)
                checks += await self._check_loss(results, url)
        self._conclude(checks)
        return all(check.holds for check in checks)

    # --- starting -----------------------------------------------------------------------------

    def _choose_work(self) -> Work:
        options = self._options
        if options.folder is None:
            return default_work(options.partitions, options.rounds)
        return Work.of_folder(options.folder.resolve(), options.partitions, options.rounds)

    async def _find_server(self) -> str:
        options = self._options
        if await _is_ready(options.url):
            self._say(f"a server is running at {options.url}: we use it")
            return options.url
        self._say(f"no server is running at {options.url}: we start one on a temporary store")
        url = await asyncio.to_thread(self._children.start_server)
        self._say(f"it listens at {url}")
        return url

    def _start_workers(self, url: str) -> dict[str, Child]:
        options, work = self._options, self._work
        list_of_work = self._folder / "work.json"
        work.save(list_of_work)
        workers = {}
        for number in range(1, options.workers + 1):
            name = f"worker-{number}"
            settings = {
                "name": name,
                "url": url,
                "namespace": options.namespace,
                "group": self._group_id,
                "session_timeout_ms": options.session_timeout_ms,
                "work": str(list_of_work),
                "results": str(self._folder / "results.db"),
            }
            workers[name] = self._children.start(name, "rota.demo.worker", json.dumps(settings))
        pids = ", ".join(f"{name} is process {worker.pid}" for name, worker in workers.items())
        self._say(f"{pids}; their group is {self._group_id}")
        times = f", {work.rounds} times over" if work.rounds > 1 else ""
        self._say(f"the work: the words of {work.files} files in {len(work.partitions)} partitions{times}")
        return workers

    # --- the middle ---------------------------------------------------------------------------

    async def _until_complete(self, client: Client, workers: dict[str, Child]) -> None:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch_workers(workers))
            with self._screen.live(self._board):
                async for event in client.watch(self._group_id, after_revision=0):
                    self._last_event_at = time.monotonic()
                    for line in self._board.lines_of(event):
                        self._screen.say(line)
                    self._maybe_kill(workers)
                    if self._board.is_complete and self._loss_is_over():
                        break
            watching.cancel()
        self._say("every partition is done", "green")

    def _maybe_kill(self, workers: dict[str, Child]) -> None:
        """Kill -9 the first worker that is in the middle of its share, when all are in one generation."""
        board = self._board
        if not self._options.kill or board.loss is not None or len(board.members) < len(workers):
            return
        member_id = board.someone_in_the_middle()
        if member_id is None:
            return
        victim = workers[with_names(member_id)]
        loss = board.lose(member_id)
        victim.kill9()
        left = ", ".join(f"partition {p} at file {done} of {self._work.end(p)}" for p, done in loss.unfinished.items())
        self._say(f"kill -9 {victim.pid}: {loss.worker} is killed and leaves {left}", "bold red")

    def _loss_is_over(self) -> bool:
        loss = self._board.loss
        return loss is None or loss.expired_revision is not None

    async def _watch_workers(self, workers: dict[str, Child]) -> None:
        """Raise if a worker has ended without the kill, or if there is no more progress."""
        while True:
            for name, worker in workers.items():
                loss = self._board.loss
                if loss is None or loss.worker != name:
                    worker.check()
            if time.monotonic() > self._last_event_at + _SILENCE_S:
                raise ChildFailed(f"no event for {_SILENCE_S:.0f} s")
            await asyncio.sleep(_LOOK_INTERVAL_S)

    # --- the end ------------------------------------------------------------------------------

    async def _check_work(self, results: Results, expected_words: int, client: Client) -> list[Check]:
        """Check that all files are counted once, and that the offsets agree."""
        work, (files, words) = self._work, results.totals()
        offsets = {one.partition: one.offset for one in await client.offsets(self._group_id) if one.topic == TOPIC}
        ends = {number: work.end(number) for number in range(len(work.partitions)) if work.end(number)}
        by_worker = ", ".join(f"{count} by {worker}" for worker, count in results.by_worker().items())
        counted = f"{words} counted by the workers, {expected_words} counted directly"
        return [
            Check(f"every file was counted exactly once: {files} of {work.total} ({by_worker})", files == work.total),
            Check(f"the words agree: {counted}", words == expected_words),
            Check(f"all {len(ends)} offsets are at their ends", offsets == ends),
        ]

    async def _check_loss(self, results: Results, url: str) -> list[Check]:
        """Check that the killed worker's partitions continued, and that no write in its name was or is accepted after
        its fence: neither in the journal, nor the writes that it would make if it were only paused.
        """
        if not self._options.kill:
            return []
        loss = self._board.loss
        if loss is None:
            return [Check("a worker was killed (there was too little work for that: raise --rounds)", holds=False)]
        partition = min(loss.unfinished, default=0)
        end = self._work.end(partition)
        offsets = (OffsetToCommit(TOPIC, partition, end + 1),)
        names = (self._options.namespace, self._group_id)
        transport = HttpTransport([url])
        try:
            request = CommitOffsets(*names, loss.generation_id, offsets, loss.member_id)
            reply = (await transport.send(request, timeout_ms=_COMMIT_TIMEOUT_MS)).reply
        finally:
            await transport.close()
        by_fence = "a result in its name is rejected by the fence"
        try:
            results.add(partition, end, "", 1, loss.worker, loss.generation_id)
            last = Check(by_fence, holds=False)
        except Fenced as fenced:
            last = Check(f"{by_fence}: {fenced}", holds=True)
        return [
            Check(f"{loss.worker} was killed in the middle of its work", bool(loss.unfinished)),
            Check(
                f"others had its {len(loss.unfinished)} unfinished partitions "
                f"{loss.handed_over or 0:.1f} s after the kill, and finished them",
                loss.handed_over is not None and loss.taken_over.keys() == loss.unfinished.keys(),
            ),
            Check(
                f"the journal has no commit of {loss.worker} after it was removed",
                loss.expired_revision is not None and not loss.late_commits,
            ),
            Check(
                f"a commit in its name is rejected by the coordinator: {reply.error}",
                reply.error in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"),
            ),
            last,
        ]

    def _conclude(self, checks: list[Check]) -> None:
        screen = self._screen
        screen.show()
        screen.show(partition_table(self._board))
        screen.show("\nWhat the journal says (without the commits):")
        for event in self._board.events:
            if event.kind != "offsets_committed":
                line = {**asdict(event), "at_ms": round(event.at * 1000)}
                screen.show(f"  {with_names(timeline_line(line))}")
        screen.show("\nChecks:")
        for check in checks:
            mark, style = ("ok    ", "green") if check.holds else ("FAILED", "bold red")
            screen.show(Text.assemble("  ", (mark, style), f"  {check.claim}"))

    def _say(self, text: str, style: str = "") -> None:
        self._screen.say(BoardLine(text, style))


async def _is_ready(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as http:
        try:
            return (await http.get(f"{url.rstrip('/')}/readyz")).is_success
        except (httpx.TransportError, httpx.InvalidURL):
            return False
