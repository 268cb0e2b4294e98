"""`rota work --connector`: one command for each connector and task that is assigned to this process's worker.

Work that a worker keeps continues while its group rebalances, so each item has its own run and guardian.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rota.agents.exec import tree
from rota.agents.exec.ending import GUARDIAN_LOST, exit_without_share
from rota.agents.exec.run import Grant, GuardianLost, Run, beside
from rota.agents.exec.signals import Signals
from rota.agents.exec.stopping import StopTimes
from rota.agents.exec.work import share_grant, until
from rota.client import Client, ConnectWorker, WorkItem
from rota.client.options import RETURN_DELAY_S
from rota.protocol.fencing_token import generation_of

Share = tuple[WorkItem, ...]

_CONFIG_LOOK_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """The command to run for each item. Times are seconds.

    `drain_timeout` is the time for a command to finish when its item moves to another worker, and after SIGTERM; `wait`
    is the maximum wait for the first item, None for no maximum. `config_offset` returns this worker's position in its
    configuration: a command starts only when that reaches the position that its share requires.
    """

    command: Sequence[str]
    times: StopTimes
    connectors: Sequence[str]
    session_timeout: float
    drain_timeout: float
    scheduled_rebalance_max_delay: float = RETURN_DELAY_S
    config_offset: Callable[[], int] | None = None
    wait: float | None = None
    group_instance_id: str | None = None


async def work_on_connectors(client: Client, group_id: str, options: ConnectorOptions) -> int:
    """Run the command for each item of the share, until one ends by itself or a signal arrives; return the exit code.

    Raises:
        CoordinatorError: The coordinator refuses this member for good.
    """
    tree.adopt_orphans()
    wrapper = _Working(client, group_id, options)
    worker = client.connect_worker(
        group_id,
        connectors=options.connectors,
        config_offset=options.config_offset,
        scheduled_rebalance_max_delay=options.scheduled_rebalance_max_delay,
        session_timeout=options.session_timeout,
        rebalance_timeout=options.drain_timeout + 2 * options.session_timeout,
        group_instance_id=options.group_instance_id,
        on_assigned=wrapper.on_assigned,
        on_revoked=wrapper.on_revoked,
        on_lost=wrapper.on_lost,
        leave_on_close=True,
    )
    return await Signals(worker, options.drain_timeout, wrapper.runs).run_in(worker, wrapper.run)


class _Working:
    """Keeps the commands consistent with the share: `_wanted` should run, `_jobs` run or are about to."""

    _signals: Signals

    def __init__(self, client: Client, group_id: str, options: ConnectorOptions) -> None:
        self._client = client
        self._group_id = group_id
        self._options = options
        self._wanted: frozenset[WorkItem] = frozenset()
        self._jobs: dict[WorkItem, asyncio.Task[None]] = {}
        self._runs: dict[WorkItem, Run] = {}
        """The runs with a started command, by item."""
        self._changed = asyncio.Event()
        self._exit_codes: list[int] = []
        """The exit codes of the commands that ended by themselves, or after a signal."""

    @property
    def _is_over(self) -> bool:
        return bool(self._exit_codes or self._signals.ended_by)

    # --- what happens -------------------------------------------------------------------------

    def runs(self) -> Collection[Run]:
        """The runs with a started command."""
        return self._runs.values()

    def on_assigned(self, _added: Share, held: Share) -> None:
        self._wanted = frozenset(held)
        self._changed.set()

    async def on_revoked(self, removed: Share) -> None:
        """Stop the removed items: other workers get them only after this has returned."""
        self._wanted -= frozenset(removed)
        for item in removed:
            if item in self._runs:
                self._runs[item].stop("it was revoked", self._options.drain_timeout)
        if ending := [self._jobs[item] for item in removed if item in self._jobs]:
            await asyncio.wait(ending)

    def on_lost(self, _removed: Share) -> None:
        self._wanted = frozenset()
        for run in self._runs.values():
            run.lose("its share was lost")

    # --- what runs ----------------------------------------------------------------------------

    async def run(self, worker: ConnectWorker, signals: Signals) -> int:
        self._signals = signals
        await until(self._changed, lambda: bool(self._wanted), self._options.wait)
        if not self._wanted:
            return await self._exit_without_share(worker)
        async with asyncio.TaskGroup() as tasks:
            while not self._is_over:
                self._changed.clear()
                for item in sorted(self._wanted - self._jobs.keys()):
                    self._jobs[item] = tasks.create_task(self._run_item(item, worker))
                await self._changed.wait()
            if not signals.ended_by:
                for run in self._runs.values():
                    run.stop("another command of this worker has ended", self._options.drain_timeout)
        return next((code for code in self._exit_codes if code), 0)

    async def _exit_without_share(self, worker: ConnectWorker) -> int:
        names = [name for name in self._options.connectors if not name.endswith("*")]
        nothing_left = "no work is assigned to this worker"
        return await exit_without_share(self._client, self._group_id, worker, names, nothing_left)

    async def _run_item(self, item: WorkItem, worker: ConnectWorker) -> None:
        """Run one item, from the start of its guardian to the end of its last process."""
        try:
            with Run(self._options.times) as run:
                if await self._may_start(item, worker):
                    await self._run_command(run, item, worker)
        except GuardianLost as lost:
            _log.error("%s: %s", self._group_id, lost)
            self._exit_codes.append(GUARDIAN_LOST)
        finally:
            del self._jobs[item]
            self._changed.set()

    async def _may_start(self, item: WorkItem, worker: ConnectWorker) -> bool:
        """Wait until the configuration is read as far as the share requires; return False if the item is
        revoked first.
        """
        own = self._options.config_offset
        while item in self._wanted and not self._is_over:
            if own is None or own() >= worker.config_offset:
                return True
            await asyncio.sleep(_CONFIG_LOOK_S)
        return False

    async def _run_command(self, run: Run, item: WorkItem, worker: ConnectWorker) -> None:
        valid_until = worker.valid_until
        if valid_until is None:
            self._wanted = frozenset()
            return
        token = worker.fencing_token
        self._runs[item] = run
        try:
            run.start(self._options.command, self._grant(item, token, worker), valid_until)
            _log.info("%s: %s runs in generation %d", self._group_id, _named(item), generation_of(token))
            async with beside(self._follow(run, item, token, worker)):
                ended = await run.wait()
        finally:
            del self._runs[item]
        if ended.stopped:
            _log.info("%s: %s: %s; its command was ended", self._group_id, _named(item), ended.stopped)
        else:
            self._exit_codes.append(ended.exit_code or 0)

    async def _follow(self, run: Run, item: WorkItem, token: int, worker: ConnectWorker) -> None:
        """Forward renewals to the guardian, and new generations to the command."""
        while True:
            if (valid_until := worker.valid_until) is not None:
                run.renew(valid_until)
            if worker.fencing_token > token:
                token = worker.fencing_token
                run.send(self._grant(item, token, worker))
            await asyncio.sleep(self._options.times.margin_ms / 1000 / 4)

    def _grant(self, item: WorkItem, token: int, worker: ConnectWorker) -> Grant:
        more = {
            "ROTA_CONNECTOR": item.connector,
            "ROTA_TASK": str(item.task),
            "ROTA_CONFIG_OFFSET": str(worker.config_offset),
        }
        return share_grant(self._group_id, worker, token, (item,), more)


def _named(item: WorkItem) -> str:
    return f"{item.connector}/{item.task}"
