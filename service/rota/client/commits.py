"""Commits of a member's progress: one ordered queue, fenced by the generation, retried while that may help.

Commits are sent in the order of their calls, one request at a time, so that a retry never overwrites a later commit.
Commits that wait for a request in flight are sent together in the next one; of several for one partition only the last
is sent, and each caller receives the outcome of its own partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec.structs import replace

from rota.client.calls import retry_delay
from rota.client.driver import Driver
from rota.client.errors import (
    AccessDenied,
    CoordinatorError,
    CoordinatorUnreachable,
    InvalidRequest,
    MembershipLost,
    RebalanceInProgress,
    error_for,
)
from rota.client.holding import Holding
from rota.client.roles import Role
from rota.client.stats import MemberStats
from rota.client.tasks import BackgroundTasks, first_of
from rota.client.transports.port import Answer
from rota.core.assignors import TopicPartition
from rota.core.membership import Membership, State
from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import COMMIT_FLUSH_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_RETENTION_TIME_MS, Limits
from rota.protocol.messages import CommitOffsets, CommitReply, FetchedOffset, OffsetToCommit

Share = TypeVar("Share")

FLUSH_TIMEOUT_S = COMMIT_FLUSH_TIMEOUT_MS / 1000
_MOST_OFFSETS = 1_000
"""Maximum number of offsets in one request; further ones wait for the next."""
_MAX_OFFSET = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_COMMITTING = (State.STABLE, State.REVOKING)
_OF_THIS_MOMENT = (AccessDenied, MembershipLost, RebalanceInProgress)


def check_offset(item: OffsetToCommit) -> None:
    """Raise the coordinator's error for an offset that it can never accept.

    Raises:
        InvalidRequest: The offset, the partition or the retention is negative or too large, or no number.
    """
    name = f"{item.topic}/{item.partition}"
    if type(item.offset) is not int or not 0 <= item.offset <= _MAX_OFFSET:
        raise InvalidRequest(f"the offset of {name} must be 0 to {_MAX_OFFSET}, not {item.offset!r}")
    if type(item.partition) is not int or not 0 <= item.partition <= _MAX_PARTITION:
        raise InvalidRequest(f"the partition of {item.topic} must be 0 to {_MAX_PARTITION}, not {item.partition!r}")
    retention = item.retention_time_ms
    if retention is not None and (type(retention) is not int or not 1 <= retention <= MAX_RETENTION_TIME_MS):
        raise InvalidRequest(f"the retention of {name} must be 1 to {MAX_RETENTION_TIME_MS} ms, not {retention!r}")


def check_metadata(item: OffsetToCommit) -> None:
    """Raise `InvalidRequest` for metadata that is longer than coordinators accept by default."""
    if len(item.metadata) > Limits().offset_metadata_max_chars:
        raise error_for(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"the metadata of {item.topic}/{item.partition} has {len(item.metadata)} characters, "
            f"more than {Limits().offset_metadata_max_chars}",
        )


def retrieved(future: asyncio.Future[None]) -> None:
    """Retrieve the future's error, so that the event loop does not log one that the program never reads."""
    if not future.cancelled():
        future.exception()


@dataclass(slots=True, eq=False)
class _Entry(Generic[Share]):
    """One call of `commit`."""

    items: tuple[OffsetToCommit, ...]
    concerned: Share
    """The part of the share that must still be held for the entry to be sent in a later generation."""
    era: int
    """The entry's period of ownership: progress from before a loss is not committed for a later share."""
    outcome: asyncio.Future[None]
    is_in_doubt: bool = False
    """Whether an attempt had no answer: a coordinator may have committed it."""
    verdict: MembershipLost | None = None
    """The coordinator's answer to the last attempt, if it ended the generation or the membership."""

    def fail(self, error: CoordinatorError) -> None:
        """Fail with this error, unless the outcome of an earlier attempt without an answer is unknown."""
        if self.is_in_doubt and isinstance(error, _OF_THIS_MOMENT):
            text = f"it is not known whether this was committed: an attempt had no answer, and then: {error}"
            error = CoordinatorUnreachable(text)
        elif type(error) is MembershipLost:
            error = self.verdict or error
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def answered(self, refused: Mapping[TopicPartition, ErrorCode]) -> None:
        """Complete the entry: the coordinator has committed it, except for rejected partitions."""
        own = [name for item in self.items if (name := place_of(item)) in refused]
        if self.outcome.done():
            return
        if not own:
            self.outcome.set_result(None)
            return
        detail = "not committed: " + ", ".join(f"{topic}/{partition}" for topic, partition in own)
        is_deleted = refused[own[0]] is ErrorCode.UNKNOWN_TOPIC
        error = MembershipLost(f"{detail}: the topic was deleted") if is_deleted else error_for(refused[own[0]], detail)
        self.outcome.set_exception(error)


class Commits(Generic[Share]):
    """A member's commits. `Member.commit` documents their guarantees."""

    def __init__(
        self,
        machine: Membership,
        role: Role[Share],
        driver: Driver,
        tasks: BackgroundTasks,
        jitter: Callable[[], float],
        stats: MemberStats,
        holding: Holding[Share],
    ) -> None:
        self._machine = machine
        self._role = role
        self._driver = driver
        self._tasks = tasks
        self._jitter = jitter
        self._stats = stats
        self._holding = holding
        self._topic_ids: dict[TopicPartition, int] = {}
        """The topic id of each partition whose progress was fetched; the program works on that topic."""
        self._waiting: list[_Entry[Share]] = []
        self._under_way: list[_Entry[Share]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._waits_for_next = asyncio.Event()
        """Set while the commits in flight can only be made in the next generation."""

    def add(self, items: tuple[OffsetToCommit, ...]) -> asyncio.Future[None]:
        """Queue a commit and return the future of its outcome. Its place in the queue is that of this call."""
        for item in items:
            check_offset(item)
        if not items:
            return _done()
        concerned = self._role.concerned(self._holding.owned, items)
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(retrieved)
        entry = _Entry(items, concerned, self._holding.era, outcome)
        self._waiting.append(entry)
        self._stats.commit_queued({place_of(item) for item in items}, outcome)
        if self._idle.is_set():
            self._idle.clear()
            self._tasks.create(self._send_all())
        return entry.outcome

    def note_fetched(self, offsets: Sequence[FetchedOffset]) -> None:
        """Reject later commits of these partitions if their topic has been deleted since the fetch."""
        self._topic_ids.update(
            {TopicPartition(each.topic, each.partition): each.topic_id for each in offsets if each.topic_id is not None}
        )

    async def flush(self, for_good_s: float | None = None) -> None:
        """Return when all queued commits have been sent or have failed.

        Commits that wait for the next generation are excluded, because that generation starts only after the current
        share is revoked. A member that leaves waits `for_good_s` seconds for them.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S if for_good_s is None else for_good_s):
                await (first_of(self._idle, self._waits_for_next) if for_good_s is None else self._idle.wait())

    def drop(self) -> None:
        """Fail all commits that are not known to be made: the share is lost, and the generation with it."""
        self._topic_ids.clear()
        self._fail_rest("this member does not hold (any more) the partitions of this commit")

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                self._under_way = self._take_waiting()
                await self._commit(self._under_way)
        finally:
            self._idle.set()
            self._fail_rest("the member was closed before this was committed")

    def _fail_rest(self, detail: str) -> None:
        _fail_all([*self._under_way, *self._waiting], MembershipLost(detail))
        self._under_way, self._waiting = [], []

    def _take_waiting(self) -> list[_Entry[Share]]:
        """Remove and return the entries of the next request: the first, and those after it that fit."""
        taken: list[_Entry[Share]] = []
        offsets = 0
        while self._waiting and (not taken or offsets + len(self._waiting[0].items) <= _MOST_OFFSETS):
            taken.append(self._waiting.pop(0))
            offsets += len(taken[-1].items)
        return taken

    async def _commit(self, entries: list[_Entry[Share]]) -> None:
        """Send until each entry is known to be committed, or can no longer be."""
        settings = self._machine.settings
        backoff = Backoff(settings.backoff_first_ms, settings.heartbeat_backoff_cap_ms)
        is_again = False
        while entries := [entry for entry in entries if not entry.outcome.done()]:
            over = [entry for entry in entries if not self._holds or entry.era != self._holding.era]
            if over:
                _fail_all(over, MembershipLost("this member does not hold (any more) the partitions of this commit"))
                continue
            request = self._fenced(_latest(entries))
            if is_again:
                self._stats.repeated(request)
            is_again = True
            error = await self._commit_once(request, entries)
            if error is None:
                continue
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                # The member waits for the assignment of this generation.
                await self._pause_before_again(backoff.next_ms(self._jitter()), error)
                await self._wait_until_stable(request.generation_id - 1)
                _fail_all([entry for entry in entries if not self._still_holds(entry)], error)
            elif error.code is ErrorCode.ILLEGAL_GENERATION or self._is_overtaken(request, error):
                await self._wait_until_stable(request.generation_id)
                # In the same generation it would be rejected again.
                is_last = self._machine.generation_id <= request.generation_id
                _fail_all([entry for entry in entries if is_last or not self._still_holds(entry)], error)
            elif isinstance(error, InvalidRequest) and len(entries) > 1:
                # One invalid entry fails the whole request, so each is sent separately, in order.
                for entry in entries:
                    await self._commit([entry])
            elif not error.retriable or not self._is_in(request.generation_id):
                _fail_all(entries, error)
            else:
                await self._pause_before_again(backoff.next_ms(self._jitter()), error)
                if not self._holds:
                    _fail_all(entries, error)

    def _is_overtaken(self, request: CommitOffsets, error: CoordinatorError) -> bool:
        """Return whether the commit got no useful answer, and another generation may accept it."""
        return error.retriable and self._holds and not self._is_in(request.generation_id)

    async def _commit_once(self, request: CommitOffsets, entries: list[_Entry[Share]]) -> CoordinatorError | None:
        """Send once and return an error of the whole request; entries store errors of single partitions."""
        newly = [entry for entry in entries if not entry.is_in_doubt]
        for entry in newly:
            entry.is_in_doubt = True

        def note(answer: Answer | CoordinatorUnreachable) -> None:
            """Record the outcome before the answer is applied: it may end the membership and so fail all commits
            without an outcome.
            """
            error = _error_in(answer)
            for entry in newly:
                entry.is_in_doubt = isinstance(error, CoordinatorUnreachable) and error.was_sent
            for entry in entries:
                entry.verdict = error if isinstance(error, MembershipLost) else None
            if error is None:
                for each in answer.reply.partitions:  # type: ignore[union-attr]
                    if each.error is not ErrorCode.NONE:
                        refused[TopicPartition(each.topic, each.partition)] = each.error
                for entry in entries:
                    entry.answered(refused)

        refused: dict[TopicPartition, ErrorCode] = {}
        answer = await self._driver.commit(request, REQUEST_TIMEOUT_MS, note)
        if (error := _error_in(answer)) is not None:
            return error
        if ErrorCode.UNKNOWN_TOPIC in refused.values():
            # The program still uses the progress of a deleted topic, so it restarts on its assignment.
            lost = self._machine.lose(self._driver.now_ms(), "a topic was deleted", ErrorCode.UNKNOWN_TOPIC)
            self._driver.react(lost)
            self._driver.wake.set()
        return None

    async def _wait_until_stable(self, after_generation_id: int) -> None:
        """Return in a later generation, or when this member will not be in it with its share.

        While the group prepares the generation after that, commits are still accepted; on_revoked may wait for this
        one.
        """
        machine = self._machine
        self._waits_for_next.set()
        try:
            while machine.generation_id <= after_generation_id or machine.state not in _COMMITTING:
                # A member that leaves does not join again.
                is_last = self._holding.is_leaving or not self._role.is_cooperative
                if not self._holds or (machine.state is State.REVOKING and is_last):
                    return
                await self._driver.changed.wait()
        finally:
            self._waits_for_next.clear()

    def _still_holds(self, entry: _Entry[Share]) -> bool:
        """Return whether the member is in a generation and holds the entry's partitions there."""
        if self._machine.state not in _COMMITTING or not self._holds:
            return False
        return self._holding.owned is not None and not self._role.without(entry.concerned, self._holding.owned)

    async def _pause_before_again(self, pause_ms: int, error: CoordinatorError) -> None:
        """Pause as long as the coordinator asks, but not longer than the share is held."""
        asked_s = retry_delay(error.code, error.retry_after)
        left_ms = (self._machine.deadline_ms or 0) - self._driver.now_ms()
        await asyncio.sleep(max(pause_ms / 1000, min(asked_s, left_ms / 1000)))

    def _fenced(self, offsets: tuple[OffsetToCommit, ...]) -> CommitOffsets:
        settings, machine = self._machine.settings, self._machine
        return CommitOffsets(
            settings.namespace,
            settings.group_id,
            machine.generation_id,
            tuple(replace(each, topic_id=self._topic_ids.get(place_of(each), each.topic_id)) for each in offsets),
            machine.member_id,
            settings.group_instance_id,
        )

    @property
    def _holds(self) -> bool:
        return self._holding.current is not None and self._machine.holds(self._driver.now_ms())

    def _is_in(self, generation_id: int) -> bool:
        return self._holds and self._machine.generation_id == generation_id


def _error_in(answer: Answer | CoordinatorUnreachable) -> CoordinatorError | None:
    """Return the error that concerns a whole request."""
    if isinstance(answer, CoordinatorUnreachable):
        return answer
    reply = answer.reply
    if reply.error is not ErrorCode.NONE:
        return error_for(reply.error, reply.detail, answer.retry_after_ms)
    return None if isinstance(reply, CommitReply) else CoordinatorUnreachable("the answer to a commit has another type")


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def _fail_all(entries: Sequence[_Entry[Share]], error: CoordinatorError) -> None:
    for entry in entries:
        entry.fail(error)


def _latest(entries: Sequence[_Entry[Share]]) -> tuple[OffsetToCommit, ...]:
    """Return the last offset of each partition."""
    return tuple({place_of(item): item for entry in entries for item in entry.items}.values())


def place_of(item: OffsetToCommit) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)
