"""`rota work`: commands that run while this process holds a share of a group's work.

With topics, one command runs on the whole share, and is restarted for each new one. With connectors, one command runs
for each connector and task: kept work continues while its group rebalances, so each has its own run and guardian.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rota.agents.exec import tree
from rota.agents.exec.ending import GUARDIAN_LOST, exit_without_share
from rota.agents.exec.run import Ended, Grant, GuardianLost, Run, beside
from rota.agents.exec.signals import Signals
from rota.agents.exec.stopping import StopTimes
from rota.agents.shared_work import SharedWork
from rota.client import Client, ConnectWorker, Consumer

Item = tuple[str, int]
"""A partition, or a connector's task."""

_CONFIG_LOOK_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """The command and its share. Times are seconds.

    `drain_timeout` is the time for a command to finish when its share changes in order, and after SIGTERM; `wait` is
    the maximum wait for the first share, None for no maximum. With connectors that have a `config_offset`, a command
    starts only when that reaches the position that its share requires.
    """

    command: Sequence[str]
    times: StopTimes
    shared: SharedWork
    session_timeout: float
    drain_timeout: float
    wait: float | None = None
    group_instance_id: str | None = None


async def work(client: Client, group_id: str, options: WorkOptions) -> int:
    """Run the command on the share, until one ends by itself or a signal arrives; return the exit code.

    Raises:
        CoordinatorError: The coordinator refuses this member for good.
    """
    tree.adopt_orphans()
    wrapper = (_CommandPerItem if options.shared.connectors else _OneCommand)(client, group_id, options)
    member = options.shared.member(
        client,
        group_id,
        session_timeout=options.session_timeout,
        rebalance_timeout=options.drain_timeout + 2 * options.session_timeout,
        group_instance_id=options.group_instance_id,
        on_assigned=wrapper.on_assigned,
        on_revoked=wrapper.on_revoked,
        on_lost=wrapper.on_lost,
        leave_on_close=True,
    )
    return await Signals(member, options.drain_timeout, wrapper.runs).run_in(member, partial(wrapper.run, member))


class _Working(ABC):
    """Keeps commands consistent with the share: `_wanted` are the items on which a command should run."""

    _member: Consumer | ConnectWorker
    _signals: Signals

    def __init__(self, client: Client, group_id: str, options: WorkOptions) -> None:
        self._client = client
        self._group_id = group_id
        self._options = options
        self._wanted: frozenset[Item] = frozenset()
        self._changed = asyncio.Event()

    async def run(self, member: Consumer | ConnectWorker, signals: Signals) -> int:
        self._member, self._signals = member, signals
        return await self._work()

    @abstractmethod
    async def _work(self) -> int:
        """Run commands until the end, and return the exit code."""

    @abstractmethod
    def runs(self) -> Collection[Run]:
        """The runs with a started command."""

    # --- callbacks of the member --------------------------------------------------------------

    def on_assigned(self, _added: Sequence[Item], held: Sequence[Item]) -> None:
        self._wanted = frozenset(held)
        self._changed.set()

    @abstractmethod
    async def on_revoked(self, removed: Sequence[Item]) -> None:
        """Stop the work on the removed items: other members get them only after this has returned."""

    def on_lost(self, _removed: Sequence[Item]) -> None:
        self._wanted = frozenset()
        for run in self.runs():
            run.lose("its share was lost")

    # --- shared parts -------------------------------------------------------------------------

    async def _has_share(self, wait_s: float | None) -> bool:
        """Wait for a share, at most for this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._wanted:
                    self._changed.clear()
                    await self._changed.wait()
        return bool(self._wanted)

    async def _exit_without_share(self, topics: Sequence[str], nothing_left: str) -> int:
        return await exit_without_share(self._client, self._group_id, self._member, topics, nothing_left)

    def _grant(self, share: Iterable[Item], more: Mapping[str, str]) -> Grant:
        """Return the grant of a share to a command; `more` is only for its environment."""
        numbers: dict[str, list[int]] = {}
        for topic, partition in sorted(share):
            numbers.setdefault(topic, []).append(partition)
        assignment = [{"topic": topic, "partitions": partitions} for topic, partitions in numbers.items()]
        variables = {**more, "ROTA_ASSIGNMENT": json.dumps(assignment)}
        member = self._member
        return Grant(self._group_id, member.fencing_token, member.member_id, variables, {"assignment": assignment})

    def _start(self, run: Run, share: Iterable[Item], grant: Grant, valid_until: float) -> None:
        run.start(self._options.command, grant, valid_until)
        _log.info("%s: runs on %s in generation %d", self._group_id, _named(share), grant.generation_id)

    def _lost_guardian(self, lost: GuardianLost) -> int:
        _log.error("%s: %s", self._group_id, lost)
        return GUARDIAN_LOST


class _OneCommand(_Working):
    """One command at a time, on the share `_share`."""

    def __init__(self, client: Client, group_id: str, options: WorkOptions) -> None:
        super().__init__(client, group_id, options)
        self._share: frozenset[Item] = frozenset()
        self._run: Run | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def runs(self) -> Collection[Run]:
        return () if self._run is None else (self._run,)

    async def on_revoked(self, removed: Sequence[Item]) -> None:
        self._wanted -= frozenset(removed)
        if self._run is not None and self._share.intersection(removed):
            self._run.stop("its share was revoked", self._options.drain_timeout)
            await self._idle.wait()

    async def _work(self) -> int:
        wait_s = self._options.wait
        while True:
            # The guardian is started before the share, because with a share every millisecond counts.
            with Run(self._options.times) as run:
                if not await self._has_share(wait_s):
                    return await self._exit_without_share(
                        self._options.shared.topics, "other members hold all partitions"
                    )
                try:
                    ended = await self._on_share(run)
                except GuardianLost as lost:
                    return self._lost_guardian(lost)
                finally:
                    self._run, self._share = None, frozenset()
                    self._idle.set()
            if not ended.stopped or self._signals.ended_by:
                return self._signals.exit_code(ended)
            _log.info("%s: %s; the command was ended", self._group_id, ended.stopped)
            wait_s = None

    async def _on_share(self, run: Run) -> Ended:
        """Do one run on one share."""
        valid_until = self._member.valid_until
        if valid_until is None:
            self._wanted = frozenset()
            return Ended(None, "its share was lost")
        self._share, self._run = self._wanted, run
        self._idle.clear()
        self._start(run, self._share, self._grant_of_share(), valid_until)
        async with beside(self._follow(run)):
            return await run.wait()

    async def _follow(self, run: Run) -> None:
        """Send renewals to the guardian and new generations to the command; stop it if its share has changed."""
        while True:
            run.renew(self._member.valid_until)
            if self._wanted != self._share:
                run.stop("its share has changed", self._options.drain_timeout)
            else:
                run.update(self._grant_of_share())
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.times.look_s):
                    await self._changed.wait()

    def _grant_of_share(self) -> Grant:
        more = {}
        if len(self._options.shared.topics) == 1:
            more["ROTA_PARTITIONS"] = " ".join(str(partition) for _, partition in sorted(self._share))
        return self._grant(self._share, more)


class _CommandPerItem(_Working):
    """One command for each item; `_jobs` run or are about to."""

    _member: ConnectWorker

    def __init__(self, client: Client, group_id: str, options: WorkOptions) -> None:
        super().__init__(client, group_id, options)
        self._jobs: dict[Item, asyncio.Task[None]] = {}
        self._runs: dict[Item, Run] = {}
        """The runs with a started command, by item."""
        self._exit_codes: list[int] = []
        """The exit codes of the commands that ended by themselves, or after a signal."""

    @property
    def _is_over(self) -> bool:
        return bool(self._exit_codes or self._signals.ended_by)

    def runs(self) -> Collection[Run]:
        return self._runs.values()

    async def on_revoked(self, removed: Sequence[Item]) -> None:
        self._wanted -= frozenset(removed)
        for item in removed:
            if item in self._runs:
                self._runs[item].stop("it was revoked", self._options.drain_timeout)
        if ending := [self._jobs[item] for item in removed if item in self._jobs]:
            await asyncio.wait(ending)

    async def _work(self) -> int:
        if not await self._has_share(self._options.wait):
            names = [name for name in self._options.shared.connectors if not name.endswith("*")]
            return await self._exit_without_share(names, "no work is assigned to this worker")
        async with asyncio.TaskGroup() as tasks:
            while not self._is_over:
                self._changed.clear()
                for item in sorted(self._wanted - self._jobs.keys()):
                    self._jobs[item] = tasks.create_task(self._run_item(item))
                await self._changed.wait()
            if not self._signals.ended_by:
                for run in self._runs.values():
                    run.stop("another command of this worker has ended", self._options.drain_timeout)
        return next((code for code in self._exit_codes if code), 0)

    async def _run_item(self, item: Item) -> None:
        """Run one item, from the start of its guardian to the end of its last process."""
        try:
            with Run(self._options.times) as run:
                if await self._may_start(item):
                    await self._run_command(run, item)
        except GuardianLost as lost:
            self._exit_codes.append(self._lost_guardian(lost))
        finally:
            del self._jobs[item]
            self._changed.set()

    async def _may_start(self, item: Item) -> bool:
        """Wait until the configuration is read as far as the share requires; return False if the item is
        revoked first.
        """
        own = self._options.shared.config_offset
        while item in self._wanted and not self._is_over:
            if own is None or own() >= self._member.config_offset:
                return True
            await asyncio.sleep(_CONFIG_LOOK_S)
        return False

    async def _run_command(self, run: Run, item: Item) -> None:
        valid_until = self._member.valid_until
        if valid_until is None:
            self._wanted = frozenset()
            return
        self._runs[item] = run
        try:
            self._start(run, (item,), self._grant_of_item(item), valid_until)
            async with beside(self._follow(run, item)):
                ended = await run.wait()
        finally:
            del self._runs[item]
        if ended.stopped:
            _log.info("%s: %s: %s; its command was ended", self._group_id, _named((item,)), ended.stopped)
        else:
            self._exit_codes.append(ended.exit_code or 0)

    async def _follow(self, run: Run, item: Item) -> None:
        """Forward renewals to the guardian, and new generations to the command."""
        while True:
            run.renew(self._member.valid_until)
            run.update(self._grant_of_item(item))
            await asyncio.sleep(self._options.times.look_s)

    def _grant_of_item(self, item: Item) -> Grant:
        more = {
            "ROTA_CONNECTOR": item[0],
            "ROTA_TASK": str(item[1]),
            "ROTA_CONFIG_OFFSET": str(self._member.config_offset),
        }
        return self._grant((item,), more)


def _named(share: Iterable[Item]) -> str:
    return ", ".join(f"{name}/{number}" for name, number in sorted(share))
