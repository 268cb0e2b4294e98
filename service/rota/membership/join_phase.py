"""Knowledge of a join phase beside its answers: when it may have completed, and whether we were in it."""

from __future__ import annotations

from rota.protocol.messages import NO_GENERATION


class JoinPhase:
    """Of one member, from one generation to the next."""

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
