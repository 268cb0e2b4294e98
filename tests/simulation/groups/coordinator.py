"""The real core, `rota.core.group.shard.Shard`, on an event loop: its timers, its parked calls and its topics.

It has no store: durability is what `tests.simulation.world` simulates. Here the members are the subject.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from rota.core.group.assignment import AssignmentJob
from rota.core.group.records import Entry, GenerationCompleted
from rota.core.group.rows import ShardImage
from rota.core.group.shard import Shard
from rota.core.group.state import Group, Result, Timer, TimerKind
from rota.core.replica.owned_shard import wait_ms
from rota.core.types import TopicFacts
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    DeleteTopic,
    ForgetTopic,
    JoinGroup,
    ListTopics,
    ListTopicsReply,
    PutTopic,
    Reply,
    Request,
    TopicReply,
    parks_for_ms,
)

NAMESPACE = "groups"
LINGER_S = 0.05

OnReply = Callable[[Reply], None]


@dataclass(slots=True)
class _Parked:
    request: Request
    on_reply: OnReply
    timer: asyncio.TimerHandle | None = None


class GroupCoordinator:
    """Takes requests and answers each once, unless its caller hangs up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self._loop = loop
        self.limits = limits
        self.shard = Shard(0, limits)
        self.revision = 0
        self.rebalances = 0
        self.watchers: list[Callable[[Entry], None]] = []
        """What follows the coordinator's records."""
        self._numbers = 0
        self._calls: dict[int, _Parked] = {}
        self._watches: dict[int, _Parked] = {}
        self._served: dict[tuple[str, str], None] = {}
        """Groups that the coordinator assigns."""

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000 + 1e-3)

    def group(self, group_id: str) -> Group | None:
        return self.shard.groups.get((NAMESPACE, group_id))

    def topics(self) -> dict[str, TopicFacts]:
        """The registered topics."""
        rows = sorted(self.shard.topics.values(), key=lambda row: row.topic)
        return {row.topic: TopicFacts(row.partitions, dict(row.attributes)) for row in rows if row.partitions}

    # --- calls --------------------------------------------------------------------------------

    def submit(self, request: Request, on_reply: OnReply) -> int:
        """Decide a request. `on_reply` is called with its reply, now or later."""
        self._numbers += 1
        number = self._numbers
        if isinstance(request, ListTopics) and request.wait_ms:
            self._list_when_changed(request, number, on_reply)
            return number
        if isinstance(request, JoinGroup):
            request = replace(request, new_member_id=f"{request.client_id}-{number}")
        parked = self._calls[number] = _Parked(request, on_reply)
        result = self.shard.handle(request, number, self.now_ms())
        if all(answered != number for answered, _ in result.replies):
            delay_s = wait_ms(request, self.shard) / 1000
            parked.timer = self._loop.call_later(delay_s, self._unpark, number, True)
        self._take(result)
        if isinstance(request, PutTopic | DeleteTopic):
            self._topics_changed()
        return number

    def ask(self, request: Request) -> Reply:
        """The reply to a request that never parks."""
        replies: list[Reply] = []
        self.submit(request, replies.append)
        reply = replies[0]
        if isinstance(request, PutTopic) and isinstance(reply, TopicReply) and reply.forget_id:
            self.ask(ForgetTopic(NAMESPACE, request.topic, reply.forget_id))
            return self.ask(replace(request, topic_id=reply.forget_id))
        return reply

    def hang_up(self, number: int) -> None:
        """The caller has closed its connection."""
        watch = self._watches.pop(number, None)
        if watch is not None and watch.timer is not None:
            watch.timer.cancel()
        if number in self._calls:
            self._unpark(number, False)
            self._calls.pop(number, None)

    def reload(self) -> None:
        """Restart: unsettled state is forgotten, and every parked call is answered with a retriable error."""
        calls, self._calls = self._calls, {}
        self.shard.forget_unsettled()
        tombstones = self.shard.tombstones
        self.shard, loaded = Shard.load(_image(self.shard), self.limits, self.now_ms())
        self.shard.tombstones = tombstones
        self._take(loaded)
        for call in calls.values():
            if call.timer is not None:
                call.timer.cancel()
            call.on_reply(refuse(call.request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the shard is being loaded again"))

    def _unpark(self, number: int, answer: bool) -> None:
        call = self._calls.get(number)
        if call is not None:
            if call.timer is not None:
                call.timer.cancel()
            self._take(self.shard.unpark(call.request, number, self.now_ms(), answer=answer))

    def _take(self, result: Result) -> None:
        self.revision += len(result.records)
        for entry in result.records:
            self.rebalances += isinstance(entry.record, GenerationCompleted)
            for watcher in self.watchers:
                watcher(entry)
        for timer in result.timers:
            self._arm(timer)
        for number, reply in result.replies:
            call = self._calls.pop(number, None)
            if call is not None:
                if call.timer is not None:
                    call.timer.cancel()
                call.on_reply(reply)

    def _arm(self, timer: Timer) -> None:
        if timer.kind is TimerKind.ASSIGN:
            self._served[timer.namespace, timer.group_id] = None
            self._loop.call_later(LINGER_S / 10, self._assign, (timer.namespace, timer.group_id))
        else:
            delay_s = max(0, timer.at_ms - self.now_ms()) / 1000
            self._loop.call_later(delay_s, lambda: self._take(self.shard.on_timer(timer, self.now_ms())))

    # --- what the coordinator assigns -----------------------------------------------------------

    def _assign(self, key: tuple[str, str]) -> None:
        job = self.shard.assignment_job(*key)
        if job is not None:
            self._take(self.shard.finish_job(job, job.side.assign(job.generation, self._wanted(job)), self.now_ms()))

    def _wanted(self, job: AssignmentJob) -> dict[str, TopicFacts]:
        if job.side.wants_topic is None:
            return {}
        wanted = job.side.wants_topic(job.generation)
        return {name: facts for name, facts in self.topics().items() if wanted(name)}

    # --- topics -------------------------------------------------------------------------------

    def _list(self, request: ListTopics) -> ListTopicsReply:
        reply = self.ask(replace(request, wait_ms=0))
        assert isinstance(reply, ListTopicsReply)
        return reply

    def _list_when_changed(self, request: ListTopics, number: int, on_reply: OnReply) -> None:
        reply = self._list(request)
        if reply.version != request.version:
            on_reply(reply)
            return
        watch = self._watches[number] = _Parked(request, on_reply)
        delay_s = parks_for_ms(request) / 1000
        watch.timer = self._loop.call_later(delay_s, self._answer_watch, number)

    def _answer_watch(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None:
            watch.on_reply(self._list(watch.request))  # type: ignore[arg-type]

    def _topics_changed(self) -> None:
        for number in list(self._watches):
            watch = self._watches[number]
            assert isinstance(watch.request, ListTopics)
            if self._list(watch.request).version != watch.request.version:
                if watch.timer is not None:
                    watch.timer.cancel()
                self._answer_watch(number)
        for key in self._served:
            self._loop.call_later(LINGER_S, self._assign, key)


def _image(shard: Shard) -> ShardImage:
    """The rows of a shard with settled facts only."""
    groups = list(shard.groups.values())
    return ShardImage(
        shard.shard_id,
        0,
        groups=tuple(group.settled for group in groups if group.settled is not None),
        members=tuple(group.member_row(member) for group in groups for member in group.members.values()),
        offsets=tuple(row for group in groups for row in group.offsets.values()),
        topics=tuple(shard.topics.values()),
    )
