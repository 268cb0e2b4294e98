"""One worker of the demo, a separate process: holds a share of the partitions and processes it file by file."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rota.client import CoordinatorError, Member, OffsetToCommit, connect
from rota.core.assignors import TopicPartition
from rota.demo.children import set_when_orphaned
from rota.demo.results import Fenced, Results
from rota.demo.work import TOPIC, Work

Share = tuple[TopicPartition, ...]


@dataclass
class Worker:
    """Works on its share with one task at a time; `stop` lets it finish its file, `abandon` does not."""

    name: str
    work: Work
    results: Results
    member: Member[Share] | None = None
    _task: asyncio.Task[None] | None = None
    _stopping: bool = False

    def start(self, share: Share, _held: Share) -> None:
        """Start work on `share`."""
        assert self.member is not None
        self._stopping = False
        self._task = asyncio.create_task(self._work_through(share, self.member))

    async def stop(self, _share: Share) -> None:
        """Stop for a revocation: finish the current file, commit it, and release the share."""
        self._stopping = True
        if self._task is not None:
            await self._task

    def abandon(self, _share: Share) -> None:
        """Stop at once, because another worker may already hold the share: write no more."""
        if self._task is not None:
            self._task.cancel()

    async def _work_through(self, share: Share, member: Member[Share]) -> None:
        generation_id = member.generation_id
        try:
            for _, partition in share:
                # Continue after the stored results. The offset may be one behind, if its commit was lost with its
                # worker.
                position = self.results.take(partition, generation_id)
                while position < self.work.end(partition) and not self._stopping:
                    await asyncio.to_thread(self._count, partition, position, generation_id)
                    position += 1
                    await member.commit([OffsetToCommit(TOPIC, partition, position)])
        except (Fenced, CoordinatorError) as fenced:
            # The member's next heartbeat reports the same, and it joins again for its new share.
            print(f"{self.name} stops in generation {generation_id}: {fenced}", file=sys.stderr, flush=True)

    def _count(self, partition: int, position: int, generation_id: int) -> None:
        words = self.work.count_at(partition, position)
        file = self.work.name_at(partition, position)
        self.results.add(partition, position, file, words, self.name, generation_id)


async def run(options: dict[str, Any]) -> None:
    """Run a member until SIGTERM, or until the parent process has ended, when standard input ends."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    set_when_orphaned(stopped)
    work, session_ms = Work.load(Path(options["work"])), options["session_timeout_ms"]
    with Results(Path(options["results"])) as results:
        worker = Worker(options["name"], work, results)
        async with connect(options["url"], options["namespace"], client_id=worker.name) as client:
            worker.member = client.consumer(
                options["group"],
                {TOPIC: len(work.partitions)},
                "range",
                session_timeout=session_ms / 1000,
                rebalance_timeout=max(10_000, session_ms) / 1000,
                on_assigned=worker.start,
                on_revoked=worker.stop,
                on_lost=worker.abandon,
            )
            async with worker.member:
                await stopped.wait()


def main() -> None:
    """The process that `rota demo` starts for each worker."""
    # All processes of a terminal receive Ctrl-C; the parent process decides how to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(run(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
