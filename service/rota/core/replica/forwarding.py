"""Forwarding: which replica answers a call, when a call is retried, and what its client gets where no owner answers.

Any replica takes any call. It answers for shards of its own, and forwards the rest to the shard's owner. A peer answers
from its own shards alone, so a call is forwarded once at a time, and never in a circle.

Why a retry is safe. Some calls must not take effect twice: a commit, a join. A replica therefore sends a call to a
second owner only where the first answer proves that no replica has decided the call, or ever will:

- `NOT_COORDINATOR` and `COORDINATOR_LOAD_IN_PROGRESS` (`MOVED`) stand in the place of a decision. A replica without the
  shard answers so, and one that has closed it. At a hand-over the parked calls are answered so as well, but only if
  all that the owner has decided is durable (`OwnedShard.drop`): then these calls wait for other members, and what they
  have changed so far is a join phase, which the next owner does not load. To that owner the call is new.
- A replica that stops refuses calls with `COORDINATOR_NOT_AVAILABLE`. A write of unknown outcome has the same code, so
  the code proves nothing: the owner marks a refusal as `Answer.undecided`, and `as_moved` puts the mark into the code
  that a peer receives.
- A connection that breaks and an answer that does not come prove nothing: the peer may have decided, or may decide
  later. The call ends with `COORDINATOR_NOT_AVAILABLE`. Only its client knows whether it may send the call again: a
  member repeats a commit with the same offsets, and joins with the member id that it has.
- A heartbeat decides nothing, so losing the answer costs nothing but time. Where no owner answers in time, the liveness
  store takes the heartbeat instead, and the next owner reads it there (`runtime/sessions.py`).

Retries end. A hand-over takes some tens of milliseconds, so a replica waits `MOVE_MS` for the next owner. After that
the client gets the last answer, which is retriable, and its own backoff applies.

A call is a generator, as a round of `leases.py` is: it yields a step, and is sent the answer to it with the time by the
monotonic clock. It returns the answer to the call.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

from msgspec.structs import replace

from rota.core.replica.known_owners import KnownOwners
from rota.core.replica.ports import Answer, Replica
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    ForgetTopic,
    GroupRequest,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    ListReply,
    ListTopics,
    Reply,
    Request,
    SyncGroup,
    TopicReply,
    parks_for_ms,
)

MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""No replica has decided the call: the next owner may be asked."""
UNANSWERED = (*MOVED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""No owner has answered."""
MOVE_MS = 1_000
"""How long a call waits for its shard to have an owner. A hand-over takes some tens of milliseconds."""
POLL_MS = 20
"""How often the owners are read while a shard has none."""
ANSWER_MS = 5_000
"""How long a peer may take, beyond the time for which the call may park."""
HEARTBEAT_MS = 1_000
"""The same for a heartbeat, which an owner answers from memory. If no answer comes, the liveness store has to take the
heartbeat before the member gives the call up: see `MembershipSettings.heartbeat_grace_ms`."""
Submitted: TypeAlias = CommitOffsets | Heartbeat | HeartbeatMany | JoinGroup | SyncGroup | LeaveGroup
"""Requests that may be answered without a task, also those among them that wait."""
SUBMITTED = get_args(Submitted)
"""The same for `isinstance`, which takes three times as long with a union."""
Listed: TypeAlias = ListGroups | ForgetTopic
"""Requests to every shard."""
NOT_ALL = "not every shard is loaded"
"""A list of a part would look like the whole."""
DRAINING = "this replica is stopping; ask again, another one takes over"


# --- steps ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class AskHere:
    """Answer the request from this replica's own shards; answered with an `Answer`."""

    request: Request


@dataclass(slots=True)
class AskPeer:
    """Forward the request; answered with the peer's `Answer`, or with `NoAnswer`: the connection broke, or none came
    within `answer_timeout_ms`.
    """

    peer: Replica
    request: Request
    parks: bool
    """The call may wait at the peer for long. As soon as this replica drains, cancel the call there and answer
    `NoAnswer(DRAINING)`: its client waits again elsewhere, and must not hold up the end of this replica."""


class NoAnswer(NamedTuple):
    """A peer may have decided the call, may yet decide it, or never will."""

    why: str


@dataclass(slots=True)
class ReadOwners:
    """Read the owners of all shards from the store and call `KnownOwners.update`, unless that was done less than
    `POLL_MS` ago. However many calls wait, the store is read once in that time. Best effort, until `until_ms`.
    """

    until_ms: int


@dataclass(slots=True)
class AwaitArrival:
    """Go on at `until_ms`, or as soon as a shard was loaded into this replica."""

    until_ms: int


@dataclass(slots=True)
class Pause:
    """Go on at `until_ms`."""

    until_ms: int


@dataclass(slots=True)
class RecordHeartbeat:
    """Have the liveness store take the heartbeat (`SharedSessions.record`); answered with the `Answer` to it, None
    where there is no liveness store or it knows none of the members.
    """

    request: Heartbeat | HeartbeatMany


Step: TypeAlias = AskHere | AskPeer | ReadOwners | AwaitArrival | Pause | RecordHeartbeat
Found = TypeVar("Found")
Steps: TypeAlias = Generator[Step, tuple[Any, int], Found]
"""Each step is sent its answer, None where it has none, and the time then."""


# --- the calls of one replica --------------------------------------------------------------------


class Forwarding:
    """Sends each call where its shard is, by what this replica knows of the owners.

    `here` are the shards in this replica's memory. Without `forwards` a client has to find the owner of a group or
    topic by itself.
    """

    def __init__(self, known: KnownOwners, here: Container[int], *, forwards: bool = True) -> None:
        self.forwards = forwards
        self.is_draining = False
        """This replica stops: its clients' calls wait for nothing. Set it BEFORE the shards are released."""
        self._known = known
        self._here = here

    def call(self, request: Request, now_ms: int) -> Steps[Answer]:
        """The answer to a client's request, wherever its shard is."""
        if isinstance(request, Listed):
            return (yield from self._list(request, now_ms))
        asked_ms = now_ms
        answer, now_ms = yield from self._ask_owner(request, now_ms)
        if self.is_final(answer):
            return answer
        return (yield from self.go_on(request, answer, asked_ms, now_ms))

    def route(self, request: Request) -> AskHere | AskPeer | Answer:
        """Where `call` asks first; its answer, where it asks nowhere. Not for listings, which ask everywhere."""
        peer = self.owner_elsewhere(self.shard_of(request), forwards=self._forwards(request))
        return AskHere(request) if peer is None else self.route_to(peer, request)

    def route_to(self, peer: Replica, request: Request) -> AskPeer | Answer:
        """The same, where this peer is asked first. The shell calls it for most requests, without a generator."""
        parks = parks_for_ms(request) > 0
        return _drains(request) if parks and self.is_draining else AskPeer(peer, request, parks)

    def shard_of(self, request: Request) -> int:
        """The shard of a request about one group, or about topics."""
        return shard_of_request(request, self._known.shard_count)

    def owner_elsewhere(self, shard_id: int, *, forwards: bool | None = None) -> Replica | None:
        """The peer that is asked about a shard; None where this replica is asked, as where no owner is known."""
        forwards = self.forwards if forwards is None else forwards
        return self._known.peer_of(shard_id) if forwards and shard_id not in self._here else None

    def _forwards(self, request: Request) -> bool:
        """Also without `forwards` this replica assigns its groups by the topics of their namespace."""
        return self.forwards or isinstance(request, ListTopics)

    def answer_of(self, asked: AskHere | AskPeer, outcome: Answer | NoAnswer) -> Answer:
        """What the outcome of asking means for the call."""
        if isinstance(outcome, Answer):
            return outcome
        assert isinstance(asked, AskPeer)
        detail = f"the shard's owner {_named(asked.peer)} does not answer: {outcome.why}"
        return Answer(refuse(asked.request, ErrorCode.COORDINATOR_NOT_AVAILABLE, detail))

    def is_final(self, answer: Answer) -> bool:
        """Whether the client gets this answer, the first one to its call."""
        return answer.reply.error not in UNANSWERED or self.is_draining

    def go_on(self, request: Request, answer: Answer, asked_ms: int, now_ms: int) -> Steps[Answer]:
        """The rest of a call after a first answer that is not final."""
        if isinstance(request, Heartbeat | HeartbeatMany):
            return (yield from self._keep_alive(request, answer, asked_ms, now_ms))
        answer, _ = yield from self._ask_again(request, answer, now_ms)
        return answer

    def refusal(self, request: Request, shard_id: int) -> Answer | None:
        """What a request gets for which this replica's own shards are asked in vain; None where the shard is here."""
        if self.is_draining:
            return _drains(request)
        if shard_id in self._here:
            return None
        peer = self._known.peer_of(shard_id)
        if peer is None:
            return Answer(refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the shard is being loaded"))
        return Answer(refuse(request, ErrorCode.NOT_COORDINATOR, f"the owner is {peer.address}"), owner=peer.address)

    def _ask_owner(self, request: Request, now_ms: int) -> Steps[tuple[Answer, int]]:
        do = self.route(request)
        if isinstance(do, Answer):
            return do, now_ms
        outcome, now_ms = yield do
        return self.answer_of(do, outcome), now_ms

    def _ask_again(self, request: Request, answer: Answer, now_ms: int) -> Steps[tuple[Answer, int]]:
        """Ask the next owner, for as long as no replica has decided the call.

        The store names the last owner until the next one has claimed the shard, and the last owner refuses again.
        """
        shard_id, give_up_ms = self.shard_of(request), now_ms + MOVE_MS
        while answer.reply.error in MOVED and self._forwards(request):
            has_owner, now_ms = yield from await_owner(self._known, self._here, shard_id, now_ms, give_up_ms)
            if not has_owner:
                break
            answer, now_ms = yield from self._ask_owner(request, now_ms)
            if answer.reply.error in MOVED:
                _, now_ms = yield Pause(now_ms + POLL_MS)
        return answer, now_ms

    def _keep_alive(
        self, request: Heartbeat | HeartbeatMany, answer: Answer, asked_ms: int, now_ms: int
    ) -> Steps[Answer]:
        """Members of an owner that does not answer stay alive, if the liveness store knows them."""
        if answer.reply.error is ErrorCode.NOT_COORDINATOR:
            # There is an owner, and its answer says more about the group than that the members live.
            answer, now_ms = yield from self._ask_again(request, answer, now_ms)
            if answer.reply.error not in UNANSWERED or answer.reply.error is ErrorCode.NOT_COORDINATOR:
                return answer
        recorded: Answer | None
        recorded, now_ms = yield RecordHeartbeat(request)
        if recorded is None:
            answer, _ = yield from self._ask_again(request, answer, now_ms)
            return answer
        if isinstance(request, Heartbeat) and request.wait_ms:
            # An immediate answer would make the member send the next heartbeat at once. The time that a silent owner
            # took counts.
            yield Pause(asked_ms + min(request.wait_ms, MOVE_MS))
        return recorded

    def _list(self, request: Listed, now_ms: int) -> Steps[Answer]:
        """A page of all shards, retried while some have no owner, or an owner does not answer: it decides nothing.

        Without `forwards`, too: no single owner has the whole list.
        """
        give_up_ms = now_ms + MOVE_MS
        answer, now_ms = yield from self._list_everywhere(request)
        while answer.reply.error in UNANSWERED and now_ms < give_up_ms and not self.is_draining:
            _, now_ms = yield Pause(now_ms + POLL_MS)
            answer, now_ms = yield from self._list_everywhere(request)
        return answer

    def _list_everywhere(self, request: Listed) -> Steps[tuple[Answer, int]]:
        """Each replica lists its own shards, one after the other: see `page_of_all`."""
        answer, now_ms = yield AskHere(request)
        answers = [answer]
        for peer in self._known.peers:
            answer, now_ms = yield AskPeer(peer, request, parks=False)
            if isinstance(answer, NoAnswer):
                detail = f"replica {_named(peer)} does not answer: {answer.why}"
                return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)), now_ms
            answers.append(answer)
        parts = [answer for answer in answers if answer.reply.error not in MOVED]
        return page_of_all(request, parts, self._known.shard_count), now_ms


def _named(peer: Replica) -> str:
    return f"{peer.replica_id} at {peer.peer_address}"


def await_owner(
    known: KnownOwners, here: Container[int], shard_id: int, now_ms: int, until_ms: int
) -> Steps[tuple[bool, int]]:
    """Whether, by `until_ms`, the shard is in memory here or the store names a peer that is up and holds it."""
    while now_ms < until_ms:
        _, now_ms = yield ReadOwners(until_ms)
        if now_ms < until_ms and (shard_id in here or known.peer_of(shard_id) is not None):
            return True, now_ms
        _, now_ms = yield AwaitArrival(min(now_ms + POLL_MS, until_ms))
    return False, now_ms


# --- what replicas agree on ------------------------------------------------------------------------


def as_moved(answer: Answer) -> Answer:
    """An owner's answer, as the peer receives it that has forwarded the call: see `MOVED`."""
    if not answer.undecided or answer.reply.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return answer
    return replace(answer, reply=replace(answer.reply, error=ErrorCode.NOT_COORDINATOR))


def answer_timeout_ms(request: Request) -> int:
    """How long a peer may take: as long as the request lets it wait, and a little more."""
    answer_ms = HEARTBEAT_MS if isinstance(request, Heartbeat | HeartbeatMany) else ANSWER_MS
    return parks_for_ms(request) + answer_ms


def shard_of_request(request: Request, shard_count: int) -> int:
    """The shard of a request about one group, or about topics: these are all in the shard of their namespace."""
    return shard_of(request.namespace, request.group_id if isinstance(request, GroupRequest) else "", shard_count)


def _drains(request: Request) -> Answer:
    return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, DRAINING), undecided=True)


# --- requests to all shards: one answer, complete or refused ----------------------------------------


def page_of_shards(request: Listed, parts: Mapping[int, Reply]) -> Answer:
    """What one replica lists, of the pages of its shards."""
    return Answer(_merged(request, list(parts.values())), shards=tuple(parts))


def page_of_all(request: Listed, answers: Sequence[Answer], shard_count: int) -> Answer:
    """What all replicas list.

    The page is complete only if each shard is in one answer. A shard may be in none, if its owner has released it and
    the next one is not known yet; or in two, if it has moved between two answers.
    """
    failed = next((answer for answer in answers if answer.reply.error is not ErrorCode.NONE), None)
    if failed is not None:
        return Answer(failed.reply)
    if sorted(shard_id for answer in answers for shard_id in answer.shards) != list(range(shard_count)):
        return not_all(request)
    return Answer(_merged(request, [answer.reply for answer in answers]))


def not_all(request: Listed) -> Answer:
    """The refusal of a page that would lack some shards."""
    return Answer(refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NOT_ALL))


def _merged(request: Listed, replies: Sequence[Reply]) -> Reply:
    """One page of several pages."""
    if isinstance(request, ListGroups):
        return _groups_of([r for r in replies if isinstance(r, ListReply)], request.limit)
    return TopicReply(topic=request.topic, groups=sum(r.groups for r in replies if isinstance(r, TopicReply)))


def _groups_of(replies: Sequence[ListReply], limit: int) -> ListReply:
    groups = sorted((g for reply in replies for g in reply.groups), key=lambda group: group.group_id)
    page = tuple(groups[:limit])
    more = len(groups) > limit or any(reply.next_after is not None for reply in replies)
    return ListReply(next_after=page[-1].group_id if more else None, groups=page)
