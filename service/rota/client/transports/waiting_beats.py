"""Heartbeats of many members on one stream: one message for all, and waits that end with an event instead of a timer.

A waiting heartbeat is sent like any other; its wait ends with an event of its member, its timeout, or when another
member's heartbeat is due. In the last case it is answered early, so that its member sends the next one at once and
later heartbeats of all share a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from rota.client.errors import CoordinatorUnreachable
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    JoinReply,
    MemberHeartbeat,
)
from rota.protocol.wire.problems import error_code
from rota.protocol.wire.replies import Received
from rota.protocol.wire.status import STATUS

LINGER_S = 0.001
"""Time that the first heartbeat of a message waits for others."""

_Name = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class Beat:
    """One heartbeat until its member has the outcome."""

    request: Heartbeat
    wait_s: float
    outcome: asyncio.Future[Received]
    began_at: float
    received: Received | None = None
    timer: asyncio.TimerHandle | None = None
    news: Received | None = None
    """An event that arrived before its answer; it ends the wait if the answer allows one."""

    @property
    def name(self) -> _Name:
        return (self.request.namespace, self.request.group_id, self.request.member_id)

    def finish(self, received: Received | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if received is not None and not self.outcome.done():
            self.outcome.set_result(received)

    def fail(self, error: CoordinatorUnreachable) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.outcome.done():
            self.outcome.set_exception(error)


MAX_BEATS = 5_000
"""Maximum number of heartbeats of one message: half of the servers' default maximum."""


class WaitingBeats:
    """The heartbeats of one stream. `flush` is called soon after heartbeats were added."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._unsent: list[Beat] = []
        self._waiting: dict[_Name, Beat] = {}
        self._unanswered: dict[_Name, Beat] = {}
        """Heartbeats in flight, until they wait or their calls are over."""

    def add(self, request: Heartbeat, wait_ms: int) -> Beat:
        loop = asyncio.get_running_loop()
        beat = Beat(request, wait_ms / 1000, loop.create_future(), loop.time())
        if not self._unsent:
            loop.call_later(LINGER_S, self._flush)
            self._release_those_half_through(loop.time())
        self._unsent.append(beat)
        return beat

    def discard(self, beat: Beat) -> None:
        """Discard a heartbeat whose call has ended."""
        beat.finish(None)
        _take_out(self._waiting, beat)
        _take_out(self._unanswered, beat)

    def take(self) -> list[Beat]:
        """Remove and return the heartbeats to send now."""
        beats = [beat for beat in self._unsent if not beat.outcome.done()]
        beats, self._unsent = beats[:MAX_BEATS], beats[MAX_BEATS:]
        if self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unanswered.update((beat.name, beat) for beat in beats)
        return beats

    def on_answers(self, beats: Iterable[Beat], replies: dict[tuple[str, str], Received]) -> None:
        """Handle the answer to a message with these heartbeats: finish each, or let it wait."""
        for beat in beats:
            received = _reply_to(beat.request, replies[beat.name[:2]])
            reply = received.reply
            assert isinstance(reply, HeartbeatReply)
            if (
                reply.error is not ErrorCode.NONE
                or reply.generation_id != beat.request.generation_id
                or not beat.wait_s
            ):
                beat.finish(received)
            elif beat.news is not None:
                beat.finish(beat.news)
            elif not beat.outcome.done():
                self._let_wait(beat, received)

    def on_news(self, news: Any, kind: str) -> None:
        """Handle events of members: an event may arrive before the answer to a heartbeat."""
        if kind == "election":
            self._on_election(news)
            return
        received = Received(_reply_of_news(news, kind), news.revision, news.epoch)
        named = [member.member_id for member in news.members] if kind == "generation" else news.member_ids
        for member_id in named:
            beat = self._asks_for((news.namespace, news.group_id, member_id))
            if beat is not None and (kind == "fenced" or beat.request.generation_id <= news.generation_id):
                self._end_wait(beat, received)

    def _on_election(self, news: Any) -> None:
        """Handle an election: the members are asked to join, and receive the results that their joins would have."""
        for member in news.members:
            beat = self._asks_for((news.namespace, news.group_id, member.member_id))
            if beat is not None and beat.request.generation_id < news.generation_id:
                reply = replace(_refusal(ErrorCode.REBALANCE_IN_PROGRESS, news.reason), entered=_join_of(news, member))
                self._end_wait(beat, Received(reply, news.revision, news.epoch))

    def release_all(self) -> None:
        """Answer all waiting heartbeats with the current state: the members send the next ones elsewhere."""
        for beat in tuple(self._waiting.values()):
            self._finish(beat, beat.received)

    def fail_all(self, error: CoordinatorUnreachable) -> None:
        for beat in (*self._unsent, *self._waiting.values()):
            beat.fail(error)
        self._unsent, self._waiting = [], {}

    def _asks_for(self, name: _Name) -> Beat | None:
        return self._waiting.get(name) or self._unanswered.get(name)

    def _end_wait(self, beat: Beat, received: Received) -> None:
        """End a wait now, or when its answer arrives: only the answer shows that the session was renewed."""
        if self._waiting.get(beat.name) is beat:
            self._finish(beat, received)
        else:
            beat.news = received

    def _let_wait(self, beat: Beat, received: Received) -> None:
        former = self._waiting.get(beat.name)
        if former is not None:
            former.finish(former.received)
        beat.received = received
        _take_out(self._unanswered, beat)
        self._waiting[beat.name] = beat
        beat.timer = asyncio.get_running_loop().call_later(beat.wait_s, self._finish, beat, received)

    def _finish(self, beat: Beat, received: Received | None) -> None:
        _take_out(self._waiting, beat)
        beat.finish(received)

    def _release_those_half_through(self, now: float) -> None:
        for beat in tuple(self._waiting.values()):
            if now - beat.began_at >= beat.wait_s / 2:
                self._finish(beat, beat.received)


def _take_out(beats: dict[_Name, Beat], beat: Beat) -> None:
    if beats.get(beat.name) is beat:
        del beats[beat.name]


def by_group(beats: Iterable[Beat]) -> list[HeartbeatMany]:
    """Return the requests of one message."""
    groups: dict[tuple[str, str], list[MemberHeartbeat]] = {}
    for beat in beats:
        request = beat.request
        member = MemberHeartbeat(request.member_id, request.generation_id, request.group_instance_id)
        groups.setdefault(beat.name[:2], []).append(member)
    return [HeartbeatMany(*key, tuple(members)) for key, members in groups.items()]


def _reply_to(request: Heartbeat, many: Received) -> Received:
    reply = many.reply
    assert isinstance(reply, HeartbeatManyReply)
    error, detail = reply.error, reply.detail
    for each in reply.errors:
        if each.member_id == request.member_id:
            error, detail = each.error, each.detail
    if error is not ErrorCode.NONE:
        return Received(_refusal(error, detail), many.revision, many.epoch)
    return Received(HeartbeatReply(error, detail, reply.generation_id, reply.state), many.revision, many.epoch)


def _reply_of_news(news: Any, kind: str) -> HeartbeatReply:
    match kind:
        case "rebalance":
            return _refusal(ErrorCode.REBALANCE_IN_PROGRESS, news.reason)
        case "generation":
            return HeartbeatReply(generation_id=news.generation_id, state="Stable")
        case _:
            # A code of a newer release is ignored here: the member's next heartbeat gets its own answer.
            return _refusal(error_code(news.code) or ErrorCode.COORDINATOR_NOT_AVAILABLE, news.reason)


def _join_of(news: Any, member: Any) -> JoinReply:
    return JoinReply(
        member_id=member.member_id,
        generation_id=news.generation_id,
        protocol_type=news.protocol_type,
        protocol_name=news.protocol_name,
        leader_id=news.leader_id,
        skip_assignment=member.member_id == news.leader_id,
        fencing_token=news.fencing_token,
        assignment=member.assignment,
    )


def _refusal(error: ErrorCode, detail: str) -> HeartbeatReply:
    return HeartbeatReply(error, detail or STATUS[error].title)
