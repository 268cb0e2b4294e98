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

The rules are here; `rota.server.runtime.forwarding` asks by them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple, TypeAlias, get_args

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


class NoAnswer(NamedTuple):
    """A peer may have decided the call, may yet decide it, or never will."""

    why: str


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
        self.here = here

    def shard_of(self, request: Request) -> int:
        """The shard of a request about one group, or about topics."""
        return shard_of_request(request, self._known.shard_count)

    def owner_elsewhere(self, shard_id: int, request: Request) -> Replica | None:
        """The peer that is asked about a shard; None if this replica is asked, as when no owner is known."""
        return self._known.peer_of(shard_id) if self.is_forwarded(request) and shard_id not in self.here else None

    def is_forwarded(self, request: Request) -> bool:
        """Also without `forwards` this replica assigns its groups by the topics of their namespace."""
        return self.forwards or isinstance(request, ListTopics)

    def refusal_to_park(self, request: Request) -> Answer | None:
        """The answer to a call that would wait at a peer while this replica stops: its client waits again elsewhere."""
        return _drains(request) if self.is_draining and parks_for_ms(request) else None

    def is_final(self, answer: Answer) -> bool:
        """Whether the client gets this answer, the first one to its call."""
        return answer.reply.error not in UNANSWERED or self.is_draining

    def refusal(self, request: Request, shard_id: int) -> Answer | None:
        """What a request gets for which this replica's own shards are asked in vain; None if the shard is here."""
        if self.is_draining:
            return _drains(request)
        if shard_id in self.here:
            return None
        peer = self._known.peer_of(shard_id)
        if peer is None:
            return Answer(refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the shard is being loaded"))
        return Answer(refuse(request, ErrorCode.NOT_COORDINATOR, f"the owner is {peer.address}"), owner=peer.address)


def no_answer(peer: Replica, request: Request, why: str) -> Answer:
    """The answer to a call whose peer has not answered."""
    detail = f"the shard's owner {peer.replica_id} at {peer.peer_address} does not answer: {why}"
    return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, detail))


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
