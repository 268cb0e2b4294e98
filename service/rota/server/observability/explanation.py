"""Explanation of a group in words: its state, awaited members and deadline, last rebalance, and leader.

It is pure: computed from a description, the time, and the available part of the group's journal. The command line and
the console show the same text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rota.protocol.messages import DescribedMember, DescribeReply, ListedGroup
from rota.protocol.troubles import LATELY_MS
from rota.protocol.wording import NAMED, count, duration, listed
from rota.server.observability.generations import Event, Generation, generations
from rota.server.observability.timeline import clock_time, why

_LEADER = "leader"
"""The protocol type of elections."""
_PERMITS = "permits"
"""The protocol type of groups with permits."""


class Mood(StrEnum):
    """The health of a group."""

    CALM = "calm"
    BUSY = "busy"
    """A rebalance makes progress."""
    WAITING = "waiting"
    """The group has a trouble, as its owner judges."""
    EMPTY = "empty"


_MOODS = {"Stable": Mood.CALM, "PreparingRebalance": Mood.BUSY, "CompletingRebalance": Mood.BUSY}


@dataclass(frozen=True, slots=True)
class Point:
    """One fact, with the name of its subject."""

    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The headline is the worst trouble, or else the state; the points follow in the order of the usual questions."""

    mood: Mood
    headline: str
    points: tuple[Point, ...]


def explain(
    group: DescribeReply,
    now_ms: int,
    history: Iterable[Event] = (),
    clock: Callable[[int], str] = clock_time,
) -> Explanation:
    """Explain the group's state at `now_ms`. `clock` formats a time."""
    lines = list(history)
    takeovers = sum(line["kind"] == "member_fenced" and line["at_ms"] >= now_ms - LATELY_MS for line in lines)
    return _Explainer(group, now_ms, generations(lines), takeovers, clock).explain()


def mood_of(group: DescribeReply | ListedGroup) -> Mood:
    """Return the health of a group, by its troubles and its state."""
    return Mood.WAITING if group.troubles else _MOODS.get(group.state, Mood.EMPTY)


def seen_ms_ago(member: DescribedMember, now_ms: int) -> int | None:
    """Return the time since a member's last heartbeat; None while a call of it waits, which proves that it is alive."""
    if member.session_deadline_ms is None:
        return None
    return max(0, now_ms - (member.session_deadline_ms - member.session_timeout_ms))


@dataclass(frozen=True, slots=True)
class _Explainer:
    group: DescribeReply
    now_ms: int
    story: Sequence[Generation]
    takeovers: int
    """Number of recent takeovers of a static member's place."""
    clock: Callable[[int], str]

    def explain(self) -> Explanation:
        match self.group.state:
            case "Stable":
                headline, points = self._stable(), list[Point]()
            case "PreparingRebalance":
                headline, points = self._joining()
            case "CompletingRebalance":
                headline, points = self._assigning()
            case _:
                headline, points = self._empty(), []
        if troubles := self.group.troubles:
            also = [Point("also", each.text) for each in troubles[1:]]
            steps = dict.fromkeys(each.next_step for each in troubles)
            points = [*also, *(Point("type", f"`{step}`") for step in steps), Point("state", headline), *points]
            headline = troubles[0].text
        points += [
            *self._maintenance(),
            *self._leader(),
            *self._succession(),
            *self._permits(),
            *self._last_rebalance(),
            *self._lately(),
        ]
        return Explanation(mood_of(self.group), headline, tuple(points))

    # --- states ------------------------------------------------------------------------------------

    def _stable(self) -> str:
        members = count(len(self.group.members), "member")
        return f"Stable for {self._in_state()}: {members} in generation {self.group.generation_id}, all have joined."

    def _joining(self) -> tuple[str, list[Point]]:
        awaited = [member for member in self.group.members if member.awaited]
        here = len(self.group.members) - len(awaited)
        since = f"Rebalancing for {self._in_state()}"
        if not awaited and not self.group.pending_members:
            headline = (
                f"{since}: {count(here, 'member')} joined; the first generation waits for the initial rebalance delay."
            )
            return headline, self._until("newcomers may still join")
        who = [f"{listed([one.member_id for one in awaited])} to join again"] if awaited else []
        if self.group.pending_members:
            who.append(f"{count(self.group.pending_members, 'newcomer')} to join with the assigned id")
        joined = f"{here} of {count(len(self.group.members), 'member')} joined"
        headline = f"{since}: {joined}, waiting for {', and for '.join(who)}."
        points = self._until("then it continues without the missing members", awaited)
        points += [Point("waits for", self._waited_for(member, "join again")) for member in awaited[:NAMED]]
        commit = f"Members of generation {self.group.generation_id} may still commit."
        points.append(Point("blocked", f"No member gets a new share before that. {commit}"))
        return headline, points

    def _assigning(self) -> tuple[str, list[Point]]:
        awaited = [member for member in self.group.members if member.awaited]
        leader = self._leading
        since = f"Generation {self.group.generation_id} has been waiting for its assignment for {self._in_state()}"
        if leader is not None and leader.awaited:
            headline = f"{since}: {leader.member_id} leads, and has not assigned yet."
        elif awaited:
            headline = f"{since}: {listed([one.member_id for one in awaited])} did not request a share yet."
        else:
            headline = f"{since}: all members requested a share, the server is assigning."
        points = self._until("then members that have not synced are removed", awaited)
        points += [Point("waits for", self._waited_for(member, "sync")) for member in awaited[:NAMED]]
        parked = len(self.group.members) - len(awaited)
        points.append(Point("blocked", f"{count(parked, 'member')} wait for a share. Commits are rejected until then."))
        return headline, points

    def _empty(self) -> str:
        return f"Empty for {self._in_state()}: it has no members. The next member to join starts a new generation."

    # --- points ------------------------------------------------------------------------------------

    def _until(self, then: str, awaited: Sequence[DescribedMember] = ()) -> list[Point]:
        deadline_ms = self.group.phase_deadline_ms
        if deadline_ms is None:
            return []
        left = duration(deadline_ms - self.now_ms)
        points = [Point("until", f"{self.clock(deadline_ms)}, {left} from now; {then}.")]
        static = [one.member_id for one in awaited if one.group_instance_id]
        if static and self.group.state == "PreparingRebalance":
            points.append(Point("static", f"{listed(static)} stay members beyond that, until their sessions end."))
        return points

    def _waited_for(self, member: DescribedMember, to_do: str) -> str:
        return f"{_named(member)} ({self._last_heartbeat(member)}) did not {to_do} yet."

    def _last_heartbeat(self, member: DescribedMember) -> str:
        silent_ms, deadline_ms = seen_ms_ago(member, self.now_ms), member.session_deadline_ms
        if silent_ms is None or deadline_ms is None:
            return "a call of it waits here"
        return f"last heartbeat {duration(silent_ms)} ago, expires in {duration(deadline_ms - self.now_ms)}"

    def _leader(self) -> list[Point]:
        group = self.group
        if group.state == "Empty":
            last = next((one for one in reversed(self.story) if one.leader_id), None)
            led = f"{last.leader_id} led generation {last.generation_id}, the last one with members." if last else ""
            return [Point("leader", led)] if led else []
        leader = self._leading
        if leader is None:
            return [Point("leader", "There is no leader until the next generation names one.")]
        token = f"its fencing token is {leader.fencing_token}, of generation {group.generation_id}"
        ends = ", which ends with this rebalance" if group.state == "PreparingRebalance" else ""
        return [Point("leader", f"{_named(leader)} leads ({self._last_heartbeat(leader)}); {token}{ends}.")]

    def _maintenance(self) -> list[Point]:
        """Describe a freeze, the members that may leave, and the quarantined units."""
        points, until_ms = [], self.group.frozen_until_ms
        if until_ms is not None and until_ms > self.now_ms:
            reason = f" ({self.group.frozen_reason})" if self.group.frozen_reason else ""
            left = duration(until_ms - self.now_ms)
            waits = "newcomers, changes of topics and higher priorities wait"
            points.append(Point("frozen", f"Until {self.clock(until_ms)}, {left} from now{reason}: {waits}."))
        if self.group.leaving:
            points.append(Point("leaving", f"{listed(self.group.leaving)} may leave."))
        if self.group.quarantined:
            why = "they are not assigned until they are released"
            points.append(
                Point("quarantined", f"{listed(self.group.quarantined)}: their holders failed in a row; {why}.")
            )
        return points

    @property
    def _leading(self) -> DescribedMember | None:
        return next((member for member in self.group.members if member.member_id == self.group.leader_id), None)

    def _succession(self) -> list[Point]:
        """Describe the planned successor of the leader, and the priorities."""
        if self.group.protocol_type != _LEADER or self.group.state != "Stable":
            return []
        ranks = {one.member_id: (one.metadata_decoded or {}).get("priority", 0) for one in self.group.members}
        leader = self._leading
        if leader is None or not any(ranks.values()):
            return []
        points = []
        if successor := (leader.assignment_decoded or {}).get("successor_id"):
            points.append(Point("hand-over", f"The leader was asked to hand over to {successor}, and ends its work."))
        elif (at_ms := self.group.preempt_at_ms) is not None:
            left = duration(at_ms - self.now_ms)
            points.append(Point("hand-over", f"At {self.clock(at_ms)}, {left} from now, a higher priority takes over."))
        best = sorted(ranks, key=lambda one: -ranks[one])[:NAMED]
        if ranks[best[0]] > ranks[leader.member_id] and (leader.metadata_decoded or {}).get("holding") is None:
            points.append(Point("hand-over", "The leader cannot be asked to hand over: its metadata has no `holding`."))
        parts = ", ".join(f"{one} has {ranks[one]}" for one in best)
        return [*points, Point("priorities", f"{parts}{' (the highest)' if len(ranks) > NAMED else ''}.")]

    def _permits(self) -> list[Point]:
        """Describe the holders of permits, and the next member in the queue."""
        if self.group.protocol_type != _PERMITS or not self.group.members:
            return []
        read = [(_named(member), member.assignment_decoded or {}) for member in self.group.members]
        held = sorted(
            (parts["permit"], name, parts["token"]) for name, parts in read if parts.get("permit") is not None
        )
        line = sorted((parts["place"], name) for name, parts in read if parts.get("place"))
        names = [f"{number} by {name} with token {token}" for number, name, token in held[:NAMED]]
        names += [f"{len(held) - NAMED} more"] if len(held) > NAMED else []
        of = max((parts.get("of", 0) for _, parts in read), default=0)
        by = f": {', '.join(names)}" if names else ""
        points = [Point("permits", f"{len(held)} of {of} are held{by}.")]
        if line:
            points.append(Point("line", f"{count(len(line), 'member')} in line; {line[0][1]} gets the next permit."))
        return points

    def _last_rebalance(self) -> list[Point]:
        last = self.story[-1] if self.story else None
        because = why(self.group.rebalance_reason, self.group.rebalance_by)
        if not because:
            return []
        if self.group.state == "Empty":
            return [Point("because", f"The last member went: {because}.")]
        if last is None or last.started_at_ms is None or last.reason != self.group.rebalance_reason:
            return [Point("because", f"The last rebalance: {because}.")]
        took = "" if last.assigned_at_ms is None else f" It took {duration(last.took_ms or 0)}."
        failed = f" The leader could not assign: {last.failure}." if last.failure else ""
        ago = duration(self.now_ms - last.started_at_ms)
        return [Point("because", f"The last rebalance began {ago} ago: {because}.{took}{failed}")]

    def _lately(self) -> list[Point]:
        """Count each recent change of the group: rebalances, resyncs and takeovers."""
        since_ms = self.now_ms - LATELY_MS
        causes = Counter(one.cause.replace("_", " ") for one in self.story if (one.started_at_ms or 0) >= since_ms)
        causes["takeover"] += self.takeovers
        if causes.total() < 2:
            return []
        parts = ", ".join(f"{times} × {cause}" for cause, times in causes.most_common() if times)
        return [Point("lately", f"{count(causes.total(), 'change')} within {duration(LATELY_MS)}: {parts}.")]

    def _in_state(self) -> str:
        return duration(self.now_ms - self.group.state_since_ms)


def _named(member: DescribedMember) -> str:
    """Return the member's id with its host."""
    return f"{member.member_id} at {member.host}" if member.host else member.member_id
