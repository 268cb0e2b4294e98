"""One owned shard: requests and time in, and what may leave it, when, in the one order that is safe.

A result of the core takes four steps, and their order is the reason for this file:

    1 its records and rows go to the store, in a transaction with those of other shards (group commit);
    2 they count as the shard's durable state;
    3 its timers are set;
    4 its replies are released.

The core folds a record at once into memory that no caller can see, so that the next request of the same batch is
decided on top of it (ADR 0003). If step 1 is refused, or its outcome is unknown, steps 2 to 4 never happen: the
shell drops the shard, which answers every waiting call with a retriable error, and the shard is loaded again.

A reply waits for everything that was decided before it, not only for records of its own: it may show facts of others
that are not durable yet. For the same reason it is only given at once where all of that is durable.

Nothing waits for the records of a join phase under way (`records.settles`): a new owner forgets them, and members join
again. So they go to the store with the next append that something waits for, as a rule that of the phase's end.

Two clocks: the wall clock is the core's, for sessions and the journal; leases are counted on the monotonic one, from
before the claim was sent, so that this side stops answering before the store lets another replica in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rota.core.group.assignment import AssignmentJob
from rota.core.group.records import Entry, MemberEnd, ShardAcquired, ShardReleased, lines_of, settles
from rota.core.group.rows import ShardImage, SideCommit
from rota.core.group.sessions import MemberName
from rota.core.group.shard import Lost, Shard
from rota.core.group.state import Result, Timer, TimerKind
from rota.core.replica.ports import Answer, JournalEvent, SeenMembers, ShardBatch, ShardClaim
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_WAIT_MS, Limits
from rota.protocol.messages import (
    GetLeader,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    Reply,
    Request,
    SyncGroup,
    VerifyFence,
    parks_for_ms,
)

NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
LEASE_IS_OVER = "this replica's lease on the shard is over"
GRACE_MS = 1_000
"""Extra session time of a member at a failover: its next heartbeat has to find the new owner."""
APPEND_LATEST_MS = 1_000
"""After so long an owner appends what nothing waits for: those that follow the journal see a long join phase begin."""
PUBLISH_MS = 75
"""How often an owner publishes the heartbeats that it has received, where sessions are shared."""
STILL_HERE_MS = 500
"""How often it publishes a shard in which nothing happens, so that the next owner knows until when it was held."""
NOT_OWNED = "the lease went to another replica"
TAKE_IN_INTERVAL_MS = 2_000
"""How often the owner takes side commits in while no request needs them."""
SWEEP_INTERVAL_MS = 60_000
"""How often a shard expires offsets and empty groups."""


class Now(NamedTuple):
    """One moment on the two clocks of a replica, in milliseconds."""

    wall_ms: int
    monotonic_ms: int


@dataclass(slots=True)
class Ready:
    """What the shell carries out after a step. All of it may be done at once, unless a field says otherwise."""

    appends: bool = False
    """The shard has entries for the store: fetch them by `take_batch` with the next append. What depends on them is not
    in this `Ready`; `committed` returns it."""
    unsettled: Sequence[tuple[int, Entry]] = ()
    """Entries that nothing waits for, with their numbers: they may be notified of at once. They are in the shard's next
    batch, which is due after `APPEND_LATEST_MS` at the latest."""
    timers: Sequence[Timer] = ()
    """`on_timer` is to be called when they are due. AFTER what set them is durable, which is so by now."""
    replies: Sequence[tuple[int, Answer]] = ()
    """By the number of the call. AFTER everything that they show is durable, which is so by now."""
    parks_ms: int | None = None
    """The call of this step has no reply yet: after so long `unpark` it."""
    asks: Timer | None = None
    """BEFORE this timer removes members: read all that this process has received until now, ask the other replicas when
    they last saw the member of a session, then `others_answered`."""
    gone: Sequence[MemberName] = ()
    """Members that are no more, if sessions are shared: the other replicas are to forget them. AFTER that is durable,
    which is so by now."""
    assigns: Timer | None = None
    """The group of this timer leaves assigning to the server: compute it, then `finish_job`."""
    decided: Result | None = None
    """What the core decided in this step, for observers alone: it may not be durable yet."""


NOTHING = Ready()


class _Held(NamedTuple):
    """What waits until the journal is durable up to `seq`."""

    seq: int
    unsettled: Sequence[tuple[int, Entry]]
    replies: list[tuple[int, Reply]]
    timers: list[Timer]
    gone: Sequence[MemberName]


class OwnedShard:
    """A shard in memory with its claim. Lives from its loading until it is dropped; never comes back.

    Every step may raise where the core breaks an invariant: then the memory is worth nothing, and must be dropped.
    """

    def __init__(self, claim: ShardClaim, shard: Shard, last_seq: int, *, replica_id: str, lease_until_ms: int) -> None:
        """See `load`."""
        self.claim = claim
        self.shard = shard
        self.lease_until_ms = lease_until_ms
        """By the monotonic clock."""
        self.asks_others = False
        """Sessions are shared (`runtime.sessions`): ask other replicas before a session's timer expires a member."""
        self._asked_ms: dict[Timer, int] = {}
        """When each timer fired that waits for `others_answered`."""
        self.is_closed = False
        """It decides nothing more."""
        self.is_dropped = False
        self.was_refused = False
        """The store has rejected the append of decisions made here."""
        self.seq = last_seq
        """The last entry that was decided, durable or not."""
        self.settled_seq = last_seq
        """The last entry that has to be durable before anything that was decided since may leave."""
        self.durable_seq = last_seq
        self._replica_id = replica_id
        self._waiting: dict[int, Request] = {}
        self._entries: list[Entry] = []
        """Decided, and not yet in a batch."""
        self._held: deque[_Held] = deque()

    @classmethod
    def load(
        cls,
        claim: ShardClaim,
        image: ShardImage,
        limits: Limits,
        now: Now,
        *,
        replica_id: str,
        lease_until_ms: int,
        seen: SeenMembers | None = None,
        reason: str = "",
        lost: Lost | None = None,
    ) -> tuple[OwnedShard, Ready]:
        """A shard that was claimed, from its rows. `seen` is what a liveness store knows, None if there is none.

        `lost` is what this replica remembers of the shard and its store has lost.
        """
        shard, loaded = Shard.load(image, limits, now.wall_ms)
        owned = cls(claim, shard, image.last_seq, replica_id=replica_id, lease_until_ms=lease_until_ms)
        if seen is not None:
            owned.asks_others = True
            loaded.timers += _share_sessions(shard, seen, now, lease_until_ms)
        loaded.records.append(Entry("", "", 0, loaded.now_ms, ShardAcquired(replica_id, claim.epoch, reason)))
        if claim.generation_floor:
            # In the first batch: no answer shows a generation below the floor.
            shard.raise_generations(loaded, claim.generation_floor, lost or {})
        return owned, owned._take(loaded, now)

    @property
    def shard_id(self) -> int:
        return self.claim.shard_id

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    @property
    def waiting(self) -> int:
        """How many calls have no reply yet."""
        return len(self._waiting)

    @property
    def has_entries(self) -> bool:
        """Whether there is something for `take_batch`."""
        return bool(self._entries)

    @property
    def is_durable(self) -> bool:
        """Whether everything is durable that has to be before memory may be shown."""
        return self.settled_seq <= self.durable_seq

    def may_answer(self, now: Now) -> bool:
        """Only while the lease cannot be over: after that, another replica may know better."""
        return not self.is_dropped and now[1] < self.lease_until_ms

    # --- inputs ----------------------------------------------------------------------------------

    def submit(self, number: int, request: Request, now: Now) -> Ready:
        """Decide a request. `number` names the call: it must not have been used before."""
        if self.is_closed:
            return _refusal(number, request, ErrorCode.NOT_COORDINATOR, "the shard moves to another replica")
        if not self.may_answer(now):
            return _refusal(number, request, NOT_AVAILABLE, LEASE_IS_OVER)
        result = self.shard.handle(request, number, now.wall_ms)
        self._waiting[number] = request
        ready = self._take(result, now)
        if number not in dict(result.replies):
            ready.parks_ms = wait_ms(request, self.shard)
        return ready

    def try_heartbeat(self, number: int, request: Heartbeat | HeartbeatMany, now: Now) -> Answer | Ready | None:
        """As `submit`, for heartbeats that do not wait: the hottest path of all, where as a rule nothing is decided and
        all is durable. None if that is not so before it begins: then `submit` it.
        """
        if self.is_closed or self.settled_seq > self.durable_seq or not self.may_answer(now):
            return None
        result = self.shard.handle(request, number, now[0])
        if not result.records and not result.timers and len(result.replies) == 1:
            reply: Any = result.replies[0][1]
            return Answer(reply, self.durable_seq, self.claim.epoch)
        self._waiting[number] = request
        return self._take(result, now)

    def try_read(self, number: int, request: VerifyFence | GetLeader, now: Now) -> Answer | None:
        """Answer a call that changes nothing and does not wait; None if memory may not be shown yet."""
        if self.is_closed or not self.is_durable or not self.may_answer(now):
            return None
        result = self.shard.handle(request, number, now.wall_ms)
        assert not result.records
        return Answer(result.replies[0][1], self.durable_seq, self.claim.epoch)

    def unpark(self, number: int, now: Now) -> Ready:
        """The call has waited for as long as it may: it gets a reply."""
        request = self._waiting.get(number)
        if request is None or self.is_dropped:
            return NOTHING
        return self._take(self.shard.unpark(request, number, now.wall_ms, answer=True), now)

    def hang_up(self, number: int, now: Now) -> Ready:
        """The call's client is gone: no reply is wanted. Its member stays until its session is over."""
        request = self._waiting.pop(number, None)
        if request is None or self.is_dropped:
            return NOTHING
        return self._take(self.shard.unpark(request, number, now.wall_ms, answer=False), now)

    def on_timer(self, timer: Timer, now: Now) -> Ready:
        """A timer of one of our results is due."""
        if self._is_mute(now):
            return NOTHING
        if timer.kind is TimerKind.ASSIGN:
            self.shard.note_asked(timer, now.wall_ms)
            return Ready(assigns=timer)
        if self.shard.removes_members(timer, now.wall_ms):
            self._asked_ms[timer] = now.wall_ms
            return Ready(asks=timer)
        return self._take(self.shard.on_timer(timer, now.wall_ms), now)

    def others_answered(self, timer: Timer, seen_ms_ago: int | None, now: Now) -> Ready:
        """All that was received before `on_timer` has been read. `seen_ms_ago`: how long ago the last of the other
        replicas saw the timer's member; None if none of them knows.

        A heartbeat among that has begun a session. If that seems to be over as well, the process is slow, and what has
        been received since then is read first.
        """
        asked_ms = self._asked_ms.pop(timer, now.wall_ms)
        if self._is_mute(now):
            return NOTHING
        if seen_ms_ago is not None:
            self.shard.extend_session(timer, seen_ms_ago, now.wall_ms)
        if self.shard.removes_members(timer, asked_ms):
            return self._take(self.shard.on_timer(timer, now.wall_ms), now)
        return self.on_timer(timer, now)

    def finish_job(self, job: AssignmentJob, outcome: Mapping[str, bytes] | str, now: Now) -> Ready | None:
        """Take what the server assigned, see `Shard.finish_job`; None if the group is another by now."""
        if self._is_mute(now) or not self.shard.is_current(job):
            return None
        return self._take(self.shard.finish_job(job, outcome, now.wall_ms), now)

    def sweep(self, now: Now, empty_since_ms: int | None = None) -> Ready:
        """Expire offsets, and groups that are empty since before then; see `Shard.sweep`."""
        if self._is_mute(now):
            return NOTHING
        return self._take(self.shard.sweep(now.wall_ms, empty_since_ms=empty_since_ms)[0], now)

    def take_in(self, commits: Sequence[SideCommit], now: Now) -> Ready:
        """Learn what users' own transactions have committed; see `Shard.take_in`. Only while no append is under way."""
        return NOTHING if self._is_mute(now) else self._take(self.shard.take_in(commits, now.wall_ms), now)

    def raise_generations(self, floor: int, now: Now) -> Ready:
        """Another replica has found that the store went back, and has raised the floor of this shard."""
        if self._is_mute(now) or floor <= self.shard.generation_floor:
            return NOTHING
        result = Result(now.wall_ms, self.shard.limits, self.shard.seen)
        self.shard.raise_generations(result, floor, {})
        return self._take(result, now)

    def close(self, reason: str, now: Now) -> Ready:
        """Decide nothing more. Earlier decisions still become durable, and are answered.

        The last entry says that the shard is released, so that readers of the journal can distinguish it from a crash.
        """
        may_answer, self.is_closed = self.may_answer(now), True
        if not may_answer:
            return NOTHING
        result = Result(now.wall_ms, self.shard.limits)
        released = ShardReleased(self._replica_id, self.claim.epoch, reason)
        result.records.append(Entry("", "", 0, now.wall_ms, released))
        return self._take(result, now)

    # --- the commit order ------------------------------------------------------------------------

    def take_batch(self) -> ShardBatch:
        """Everything decided since the last batch. Only while no append of this shard is under way."""
        entries, self._entries = self._entries, []
        first_seq, epoch = self.seq - len(entries) + 1, self.claim.epoch
        lines = tuple(journal_lines(list(enumerate(entries, first_seq)), epoch))
        return ShardBatch(self.shard_id, epoch, first_seq, lines, self.shard.rows(), self._replica_id)

    def committed(self, last_seq: int, now: Now) -> Ready:
        """Step 1 is done for the batch that ends with `last_seq`; 2, 3 and 4 follow for all that waited for it."""
        if self.is_dropped:
            return NOTHING
        self.durable_seq = last_seq
        ready = Ready()
        timers: list[Timer] = []
        replies: list[tuple[int, Answer]] = []
        gone: list[MemberName] = []
        unsettled: list[tuple[int, Entry]] = []
        while self._held and self._held[0].seq <= last_seq:
            held = self._held.popleft()
            timers += held.timers
            gone += held.gone
            unsettled += held.unsettled
            replies += self._released(held.replies, held.seq, now)
        ready.timers, ready.replies, ready.gone, ready.unsettled = timers, replies, gone, unsettled
        return ready

    def drop(self, reason: str, code: ErrorCode = NOT_AVAILABLE, *, undecided: bool = False) -> Ready:
        """Throw the memory away: the store has, or may have, something else.

        Each waiting call is answered with `code`: `NOT_COORDINATOR` only where they are `undecided`, that is where
        nothing that they wait for was decided.
        """
        if self.is_dropped:
            return NOTHING
        self.is_dropped = True
        self._held.clear()
        self._entries.clear()
        waiting, self._waiting = self._waiting, {}
        refusals = ((number, refuse(request, code, reason)) for number, request in waiting.items())
        return Ready(replies=[(number, Answer(refusal, undecided=undecided)) for number, refusal in refusals])

    # --- inside ----------------------------------------------------------------------------------

    def _is_mute(self, now: Now) -> bool:
        return self.is_closed or not self.may_answer(now)

    def _take(self, result: Result, now: Now) -> Ready:
        gone: Sequence[MemberName] = ()
        unsettled: Sequence[tuple[int, Entry]] = ()
        has_settled = False
        if result.records:
            first_seq = self.seq + 1
            self.seq += len(result.records)
            self._entries += result.records
            has_settled = any(map(settles, result.records))
            if has_settled:
                self.settled_seq = self.seq
                gone = _gone(result.records) if self.asks_others else ()
            else:
                unsettled = tuple(enumerate(result.records, first_seq))
        if self.is_durable:
            replies = self._released(result.replies, self.durable_seq, now) if result.replies else ()
            return Ready(timers=result.timers, replies=replies, unsettled=unsettled, decided=result)
        if result.replies or result.timers or gone or unsettled:
            self._held.append(_Held(self.settled_seq, unsettled, result.replies, result.timers, gone))
        return Ready(appends=has_settled, decided=result)

    def _released(self, replies: list[tuple[int, Reply]], seq: int, now: Now) -> list[tuple[int, Answer]]:
        """Answers as of `seq`: in one transaction there may be later entries, of which these replies say nothing."""
        released: list[tuple[int, Answer]] = []
        may_answer, epoch = self.may_answer(now), self.claim.epoch
        for number, reply in replies:
            request = self._waiting.pop(number, None)
            if request is not None:
                released.append((number, Answer(reply, seq, epoch) if may_answer else _too_late(request)))
        return released


def journal_lines(entries: Sequence[tuple[int, Entry]], epoch: int) -> list[JournalEvent]:
    """Entries as lines of the journal, by their numbers."""
    encoded = lines_of([entry.record for _, entry in entries])
    return [
        JournalEvent(seq, at_ms, namespace, group_id, generation_id, kind, reason, payload, epoch)
        for (seq, (namespace, group_id, generation_id, at_ms, _)), (kind, reason, payload) in zip(
            entries, encoded, strict=True
        )
    ]


def _too_late(request: Request) -> Answer:
    return Answer(refuse(request, NOT_AVAILABLE, LEASE_IS_OVER))


def _refusal(number: int, request: Request, code: ErrorCode, why: str) -> Ready:
    return Ready(replies=[(number, Answer(refuse(request, code, why)))])


def _gone(records: Sequence[Entry]) -> list[MemberName]:
    """The members that are none any more after these entries."""
    return [
        (entry.namespace, entry.group_id, record.member_id)
        for entry in records
        if isinstance(record := entry.record, MemberEnd)
    ]


def _share_sessions(shard: Shard, seen: SeenMembers, now: Now, lease_until_ms: int) -> list[Timer]:
    """Shorten the sessions to what the former owner's published heartbeats leave of them.

    A member may have sent one more heartbeat, and got its answer, after the last publication: at most a silent shard's
    time between two publications after it, and the two turns in which the owner would have published the heartbeat. An
    owner publishes for as long as it answers, which is until its lease is over: an older publication shows that the
    store has lost the later ones, and says nothing about the members.
    """
    published_ms_ago = seen.published_ms_ago
    if published_ms_ago is None or published_ms_ago > lease_until_ms - now.monotonic_ms + STILL_HERE_MS + GRACE_MS:
        return shard.share_sessions({}, 0, now.wall_ms).timers
    unknown_ms_ago = max(0, published_ms_ago - STILL_HERE_MS - 2 * PUBLISH_MS)
    return shard.share_sessions(seen.seen_ms_ago, published_ms_ago + GRACE_MS, now.wall_ms, unknown_ms_ago).timers


def wait_ms(request: Request, shard: Shard) -> int:
    """How long this request may stay parked: its own `wait_ms`, within the server's bounds.

    A parked heartbeat counts as life only when it arrives and when it is answered, so it is answered
    within a third of its member's session.
    """
    match request:
        case JoinGroup() | SyncGroup():
            return parks_for_ms(request)
        case Heartbeat():
            group = shard.groups.get((request.namespace, request.group_id))
            member = group.members.get(request.member_id) if group is not None else None
            third = member.image.session_timeout_ms // 3 if member is not None else 0
            return min(parks_for_ms(request), third)
        case _:
            return MAX_WAIT_MS
