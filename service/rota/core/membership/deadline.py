"""The local deadline: until when a member may act on its share, always earlier than the coordinator's.

The coordinator counts a session from when it received the renewing call, which is never before the member sent it.
So a member that counts from the sending, and only for calls known to have renewed, gives up first: whatever the
network does, and also when it cannot be reached at all. Which calls renew is protocol.md §8.2: heartbeats (also one
answered `REBALANCE_IN_PROGRESS`), accepted commits, completed joins; not a join answered at once, not a sync in Stable.

A join phase has a deadline of its own: the coordinator drops members that have not rejoined when the rebalance timeout
runs out, however much of its session is left. That clock may have started right after the last call that found the
group settled, and a member that cannot be reached does not learn that; so this second limit holds at all times.
"""

from __future__ import annotations

from copy import copy

from rota.core.membership.settings import MembershipSettings
from rota.protocol.messages import NO_GENERATION


class LocalDeadline:
    """Tracks the last renewal and the last sight of a settled group; all times are the member's own clock."""

    def __init__(self, settings: MembershipSettings) -> None:
        self._session_ms = settings.session_timeout_ms - settings.margin_ms
        self._rebalance_ms = settings.rebalance_timeout_ms - settings.margin_ms
        self.renewed_at_ms: int | None = None
        self._settled_at_ms: int | None = None

    def clear(self) -> None:
        """The generation is over: nothing known of it says anything about the next."""
        self.renewed_at_ms = None
        self._settled_at_ms = None

    def renewed(self, sent_at_ms: int) -> None:
        """A call sent then is known to have renewed the session."""
        self.renewed_at_ms = max(sent_at_ms, self.renewed_at_ms or sent_at_ms)

    def settled(self, sent_at_ms: int) -> None:
        """A call sent then found the group in our generation and in no join phase."""
        self._settled_at_ms = max(sent_at_ms, self._settled_at_ms or sent_at_ms)

    def with_renewal(self, sent_at_ms: int, *, settled: bool) -> LocalDeadline:
        """A copy that also knows of a renewal sent then."""
        other = copy(self)
        other.renewed(sent_at_ms)
        if settled:
            other.settled(sent_at_ms)
        return other

    @property
    def valid_until_ms(self) -> int | None:
        """The moment from which the member must not act; None if no renewal is known."""
        if self.renewed_at_ms is None:
            return None
        session_over_ms = self.renewed_at_ms + self._session_ms
        rejoin_by_ms = self.rejoin_by_ms
        return session_over_ms if rejoin_by_ms is None else min(session_over_ms, rejoin_by_ms)

    @property
    def rejoin_by_ms(self) -> int | None:
        """The moment from which a join phase may have gone on without the member; None if nothing is known."""
        return None if self._settled_at_ms is None else self._settled_at_ms + self._rebalance_ms

    def is_fresh(self, now_ms: int, age_ms: int) -> bool:
        """Whether the session was renewed within the last `age_ms`."""
        return self.renewed_at_ms is not None and now_ms < self.renewed_at_ms + age_ms

    def holds(self, now_ms: int) -> bool:
        return self.valid_until_ms is not None and now_ms < self.valid_until_ms


# --- a join phase ---------------------------------------------------------------------------------


class JoinPhase:
    """The join phase of one member, from one generation to the next."""

    def __init__(self, *, is_static: bool) -> None:
        self._is_static = is_static
        self.since_ms: int | None = None
        """When the join was sent by which the phase may have completed: the session may count from then."""
        self.seen_generation_id = NO_GENERATION
        """The last generation that this member was in, to judge the next."""
        self.notified = False
        """Whether the coordinator has said that a rebalance is under way."""

    def forget_member(self) -> None:
        """A join from now on is that of a new member."""
        self.seen_generation_id = NO_GENERATION

    def pending(self, sent_at_ms: int) -> None:
        """A join sent then was answered before the phase was over: it cannot have completed before."""
        self.since_ms = sent_at_ms

    def unanswered(self, sent_at_ms: int) -> None:
        """A join without an answer may have completed."""
        self.since_ms = min(sent_at_ms, sent_at_ms if self.since_ms is None else self.since_ms)

    def completed(self, generation_id: int) -> None:
        self.since_ms = None
        self.notified = False
        self.seen_generation_id = generation_id

    def renewed(self, generation_id: int) -> bool:
        """Whether this generation is known to come from a join phase that we were part of.

        A rejoin in a Stable group is answered at once and renews nothing. A higher generation is no
        proof by itself: a resync counts up, too, and a static member that was away is not left out.
        One that replaces its former self is answered at once, with what that one's session was.
        """
        if self._is_static:
            return False
        if self.seen_generation_id == NO_GENERATION:
            return True
        return self.notified and generation_id > self.seen_generation_id


# --- progress apart from liveness (Kafka's max.poll) ----------------------------------------------


class ProcessingWatchdog:
    """Notes progress and says when a share that is held without any is to be given up. Times are milliseconds."""

    def __init__(self, interval_ms: int | None) -> None:
        """Without an interval no share is ever given up."""
        self._interval_ms = interval_ms
        self._progressed_at_ms: int | None = None

    def progressed(self, now_ms: int) -> None:
        """Note that work was done, or has just begun."""
        self._progressed_at_ms = now_ms

    def rest(self) -> None:
        """Note that no share is held, so that no progress is expected."""
        self._progressed_at_ms = None

    @property
    def due_at_ms(self) -> int | None:
        """When patience is over unless there is progress before; None while nothing is watched."""
        if self._interval_ms is None or self._progressed_at_ms is None:
            return None
        return self._progressed_at_ms + self._interval_ms

    def is_over(self, now_ms: int) -> bool:
        return self.due_at_ms is not None and now_ms >= self.due_at_ms
