"""`rota work`: a command that runs while this process holds a share of a group's work, restarted for each new share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.agents.exec import tree
from rota.agents.exec.ending import GUARDIAN_LOST, exit_without_share
from rota.agents.exec.run import Ended, Grant, GuardianLost, Run, beside
from rota.agents.exec.signals import Signals
from rota.agents.exec.stopping import StopTimes
from rota.client import Client, Consumer, Member
from rota.core.assignors import TopicPartition
from rota.core.types.topic_regex import topic_regex
from rota.protocol.fencing_token import generation_of

Share = tuple[TopicPartition, ...]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """The command and its share. Times are seconds.

    `drain_timeout` is the time for the command to finish when its share changes in order, and after SIGTERM; `wait` is
    the maximum wait for the first share, None for no maximum.
    """

    command: Sequence[str]
    times: StopTimes
    topics: Sequence[str]
    session_timeout: float
    drain_timeout: float
    strategy: str = "cooperative-sticky"
    wait: float | None = None
    group_instance_id: str | None = None
    topic_regex: str = ""
    """Instead of `topics`: a regular expression of RE2 over whole names."""
    topics_debounce: float = 0.0
    topics_except: Sequence[str] = ()


async def work(client: Client, group_id: str, options: WorkOptions) -> int:
    """Run the command on each share in turn, until it ends by itself or a signal arrives; return the exit code.

    Raises:
        CoordinatorError: The coordinator refuses this member for good.
    """
    tree.adopt_orphans()
    wrapper = _Working(client, group_id, options)
    consumer = client.consumer(
        group_id,
        topic_regex(options.topic_regex) if options.topic_regex else list(options.topics),
        options.strategy,
        topics_debounce=options.topics_debounce,
        topics_except=options.topics_except,
        session_timeout=options.session_timeout,
        rebalance_timeout=options.drain_timeout + 2 * options.session_timeout,
        group_instance_id=options.group_instance_id,
        on_assigned=wrapper.on_assigned,
        on_revoked=wrapper.on_revoked,
        on_lost=wrapper.on_lost,
        leave_on_close=True,
    )
    return await Signals(consumer, options.drain_timeout, wrapper.runs).run_in(consumer, wrapper.run)


class _Working:
    """Keeps the command consistent with the share: `_wanted` should run, `_share` runs."""

    def __init__(self, client: Client, group_id: str, options: WorkOptions) -> None:
        self._client = client
        self._group_id = group_id
        self._options = options
        self._wanted: Share = ()
        self._share: Share = ()
        self._run: Run | None = None
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    # --- what happens -------------------------------------------------------------------------

    def runs(self) -> Sequence[Run]:
        """The current run."""
        return () if self._run is None else (self._run,)

    def on_assigned(self, _added: Share, held: Share) -> None:
        self._wanted = tuple(sorted(held))
        self._changed.set()

    async def on_revoked(self, removed: Share) -> None:
        """Stop the run: other members get the removed partitions only after this has returned."""
        self._wanted = tuple(place for place in self._wanted if place not in removed)
        if set(removed).intersection(self._share) and self._run is not None:
            self._run.stop("its share was revoked", self._options.drain_timeout)
            await self._idle.wait()

    def on_lost(self, _removed: Share) -> None:
        self._wanted = ()
        if self._run is not None:
            self._run.lose("its share was lost")

    # --- what runs ----------------------------------------------------------------------------

    async def run(self, consumer: Consumer, signals: Signals) -> int:
        wait_s = self._options.wait
        while True:
            # The guardian is started before the share, because with a share every millisecond counts.
            with Run(self._options.times) as run:
                await until(self._changed, lambda: bool(self._wanted), wait_s)
                if not self._wanted:
                    return await self._exit_without_share(consumer)
                try:
                    ended = await self._on_share(run, consumer)
                except GuardianLost as lost:
                    _log.error("%s: %s", self._group_id, lost)
                    return GUARDIAN_LOST
                finally:
                    self._run, self._share = None, ()
                    self._idle.set()
            if not ended.stopped or signals.ended_by:
                return signals.exit_code(ended)
            _log.info("%s: %s; the command was ended", self._group_id, ended.stopped)
            wait_s = None

    async def _exit_without_share(self, consumer: Consumer) -> int:
        nothing_left = "other members hold all partitions"
        return await exit_without_share(self._client, self._group_id, consumer, self._options.topics, nothing_left)

    async def _on_share(self, run: Run, consumer: Consumer) -> Ended:
        """Do one run on one share."""
        valid_until = consumer.valid_until
        if valid_until is None:
            self._wanted = ()
            return Ended(None, "its share was lost")
        self._share, self._run = self._wanted, run
        self._idle.clear()
        token = consumer.fencing_token
        run.start(self._options.command, self._grant(token, consumer), valid_until)
        _log.info("%s: runs on %s in generation %d", self._group_id, _described(self._share), generation_of(token))
        async with beside(self._follow(run, token, consumer)):
            return await run.wait()

    async def _follow(self, run: Run, token: int, consumer: Consumer) -> None:
        """Send renewals to the guardian and new generations to the command; stop it if its share has changed."""
        look_s = self._options.times.margin_ms / 1000 / 4
        while True:
            if (valid_until := consumer.valid_until) is not None:
                run.renew(valid_until)
            if self._wanted != self._share:
                run.stop("its share has changed", self._options.drain_timeout)
            elif consumer.fencing_token > token:
                token = consumer.fencing_token
                run.send(self._grant(token, consumer))
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await self._changed.wait()

    def _grant(self, token: int, consumer: Consumer) -> Grant:
        more = {}
        if len(self._options.topics) == 1:
            more["ROTA_PARTITIONS"] = " ".join(str(partition) for _, partition in self._share)
        return share_grant(self._group_id, consumer, token, self._share, more)


def _described(share: Share) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in share)


async def until(changed: asyncio.Event, is_so: Callable[[], bool], wait_s: float | None) -> None:
    """Return when `is_so`, which is checked after each `changed`, or at the timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while not is_so():
                changed.clear()
                await changed.wait()


def share_grant(
    group_id: str, member: Member[Any], token: int, share: Sequence[tuple[str, int]], more: Mapping[str, str]
) -> Grant:
    """Return the grant of a share to a command; `more` is only for its environment."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in share:
        numbers.setdefault(topic, []).append(partition)
    assignment = [{"topic": topic, "partitions": partitions} for topic, partitions in numbers.items()]
    variables = {**more, "ROTA_ASSIGNMENT": json.dumps(assignment)}
    return Grant(group_id, token, member.member_id, variables, {"assignment": assignment})
