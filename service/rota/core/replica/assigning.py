"""Assigning by the server: which groups are assigned, by which topics, and when their topics are listed again.

A generation with the protocol `server:<strategy>` waits for its owner to assign it (ADR 12). The strategy needs the
topics of the namespace, and their shard is on any replica. So there are three steps: list the topics, compute, hand
the outcome in. Topics, group and owner may all change between two of them:

- The topics of a namespace are listed once at a time, for all groups that wait by then. A group that begins to wait
  during a listing waits for the next one: a topic that was put before its member joined must be in the list.
- A change of topics lists them again, for all groups of the namespace. It counts from `topics_changed` on, so a change
  that a listing under way may have missed is in the next one.
- Each group has one job at a time: two might be handed in in the wrong order. A new generation
  or a change of topics meanwhile waits until the job has been handed in.
- The group may change before its job is handed in: a member joins, or a static member returns under another id in the
  same generation. Then the job has no effect, and the group is assigned again, by topics that are listed again.
- The shard may move. A group is forgotten once its shard is not served here any more: the next owner assigns it.
- While the shard of the topics is between two owners they are unknown. An empty list would take partitions away from
  members, so no group is assigned before they are known: members of a Stable group keep what they have.
- The notification of a change may be lost on the way from another replica, so each namespace is listed again after
  `REFRESH_MS`, whether or not the topics of other namespaces change.

A change waits for `LINGER_MS`, and two changes are `PAUSE_MS` apart, so that a client that puts many topics one by one
does not cause a generation for each. A new generation does not wait for that. A group may name a longer time
(`topics_debounce_ms`): from the first change of its topics on they collect for so long, and then it is assigned anew
once, by a listing of that moment. A new owner of its shard knows nothing of changes that collect, and assigns at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rota.core.group.assignment import AssignmentJob
from rota.core.group.state import Timer
from rota.core.replica.owned_shard import OwnedShard
from rota.core.replica.ports import Answer
from rota.core.types import TopicFacts, topics_debounce_ms
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ListTopics, ListTopicsReply

TOPICS_OF_A_PAGE = 1_000
RETRY_MS = 250
"""How soon topics are listed again that were unknown."""
REFRESH_MS = 10_000
"""How often topics are listed again of which no change was notified."""
LINGER_MS = 50
"""After a change, for others of the same moment."""
PAUSE_MS = 500
"""Between two listings because of changes."""


# --- steps ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class AskTopics:
    """Ask the owner of the namespace's topics for this page of them, then call `listed`."""

    request: ListTopics


@dataclass(slots=True)
class Compute:
    """Have the job's strategy assign these topics (`assign`), hand the assignments or the strategy's error in
    (`OwnedShard.finish_job`), then call `handed_in`.
    """

    owned: OwnedShard
    job: AssignmentJob
    topics: Mapping[str, TopicFacts]
    failure: Exception | None = None
    """The exception that the strategy's `wants_topic` raised."""

    def assign(self) -> Mapping[str, bytes]:
        """Run the strategy. It may take a second, and a plug-in's may raise any exception."""
        if self.failure is not None:
            raise self.failure
        return self.job.side.checked_assign(self.job.generation, self.topics)


Step: TypeAlias = AskTopics | Compute
Outcome: TypeAlias = Mapping[str, bytes] | str
"""The assignments of a group, or why there are none."""


# --- the groups of one replica -------------------------------------------------------------------


class Assigning:
    """The groups that one replica assigns. Times are by the monotonic clock."""

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}

    def want(self, owned: OwnedShard, timer: Timer, now_ms: int) -> None:
        """A generation of the timer's group waits for its assignment; or a group that has one was loaded."""
        namespace = self._namespaces.setdefault(timer.namespace, _Namespace(timer.namespace, now_ms + REFRESH_MS))
        namespace.want(owned, timer.group_id)

    def topics_changed(self, namespace: str, now_ms: int) -> None:
        """Topics of this namespace have changed. AFTER the change is durable."""
        if namespace in self._namespaces:
            self._namespaces[namespace].refresh_soon(now_ms)

    def listed(self, do: AskTopics, answer: Answer, now_ms: int) -> None:
        """The answer to `do`."""
        self._namespaces[do.request.namespace].take_page(answer, now_ms)

    def handed_in(self, do: Compute, outcome: Outcome, *, taken: bool) -> None:
        """The outcome of `do` has reached the shard. `taken`: it counts, even if it changes nothing."""
        if do.job.namespace in self._namespaces:
            self._namespaces[do.job.namespace].settle(do, has_failed=isinstance(outcome, str), taken=taken)

    def next(self, now_ms: int) -> list[Step]:
        """The steps to take now, in any order. To be called after each input, and at `wake_ms`."""
        steps = [step for namespace in self._namespaces.values() for step in namespace.next(now_ms)]
        for name in [name for name, namespace in self._namespaces.items() if namespace.is_empty]:
            del self._namespaces[name]
        return steps

    def wake_ms(self, now_ms: int) -> int | None:
        """When `next` may have something to do without an input. AFTER `next`."""
        return min((namespace.wake_ms(now_ms) for namespace in self._namespaces.values()), default=None)


@dataclass(slots=True)
class _Group:
    owned: OwnedShard
    topics: Mapping[str, TopicFacts] | None = None
    """The topics by which it was assigned last; None: the next listing leads to a job, whatever the topics are."""
    is_computing: bool = False
    collects_until_ms: int | None = None
    """Its topics have changed, and further changes collect until then."""
    has_collected: bool = False
    """That time is over: the next listing leads to a job, if its topics are still others."""


@dataclass(slots=True)
class _Listing:
    """A listing under way, and the groups that wait for it."""

    group_ids: dict[str, None]
    topics: dict[str, TopicFacts] = field(default_factory=dict)


class _Namespace:
    """The groups of one namespace, and the listing of its topics."""

    def __init__(self, name: str, refresh_ms: int) -> None:
        self._name = name
        self._groups: dict[str, _Group] = {}
        self._waiting: dict[str, None] = {}
        """Groups for the next listing."""
        self._refresh_ms = refresh_ms
        """When all groups are to wait for a listing."""
        self._paused_until_ms = 0
        self._retry_ms = 0
        """No listing begins earlier."""
        self._listing: _Listing | None = None
        self._steps: list[Step] = []

    @property
    def is_empty(self) -> bool:
        return not self._groups and self._listing is None

    def want(self, owned: OwnedShard, group_id: str) -> None:
        group = self._groups.get(group_id)
        if group is None or group.owned is not owned:
            self._groups[group_id] = _Group(owned)
        else:
            group.topics, group.collects_until_ms, group.has_collected = None, None, False
        self._waiting[group_id] = None
        if self._listing is not None:
            self._listing.group_ids.pop(group_id, None)

    def refresh_soon(self, now_ms: int) -> None:
        self._refresh_ms = min(self._refresh_ms, max(now_ms + LINGER_MS, self._paused_until_ms))

    def next(self, now_ms: int) -> list[Step]:
        if now_ms >= self._refresh_ms:
            self._waiting |= dict.fromkeys(self._groups)
            self._refresh_ms, self._paused_until_ms = now_ms + REFRESH_MS, now_ms + PAUSE_MS
        for group_id, group in self._groups.items():
            if group.collects_until_ms is not None and now_ms >= group.collects_until_ms:
                group.collects_until_ms, group.has_collected = None, True
                self._waiting[group_id] = None
        if self._listing is None and now_ms >= self._retry_ms:
            self._begin_listing()
        steps, self._steps = self._steps, []
        return steps

    def wake_ms(self, now_ms: int) -> int:
        ends = [group.collects_until_ms for group in self._groups.values() if group.collects_until_ms is not None]
        retry = [self._retry_ms] if self._retry_ms > now_ms else []
        return min([self._refresh_ms, *retry, *ends])

    # --- listing ---------------------------------------------------------------------------------

    def _begin_listing(self) -> None:
        """For the groups that wait, unless they need no topics."""
        due = [group_id for group_id in self._waiting if not self._groups[group_id].is_computing]
        for group_id in due:
            del self._waiting[group_id]
        jobs = self._jobs(due)
        for job in jobs:
            if job.side.wants_topic is None:
                self._compute(job, {})
        group_ids = {job.group_id: None for job in jobs if job.side.wants_topic is not None}
        if group_ids:
            self._listing = _Listing(group_ids)
            self._ask("")

    def _ask(self, after: str) -> None:
        self._steps.append(AskTopics(ListTopics(self._name, after=after, limit=TOPICS_OF_A_PAGE)))

    def take_page(self, answer: Answer, now_ms: int) -> None:
        listing, reply = self._listing, answer.reply
        assert listing is not None
        if not isinstance(reply, ListTopicsReply) or reply.error is not ErrorCode.NONE:
            self._listing, self._retry_ms = None, now_ms + RETRY_MS
            self._waiting |= listing.group_ids
            return
        for topic in reply.topics:
            listing.topics[topic.topic] = TopicFacts(topic.partitions, topic.attributes)
        if reply.next_after is not None:
            self._ask(reply.next_after)
        else:
            self._listing = None
            self._assign(listing, now_ms)

    def _assign(self, listing: _Listing, now_ms: int) -> None:
        for job in self._jobs(listing.group_ids):
            try:
                topics = _wanted(job, listing.topics)
            except Exception as error:  # A plug-in may raise. Only its own group fails.
                self._compute(job, {}, error)
                continue
            if self._is_due(job, topics, now_ms):
                self._compute(job, topics)

    def _is_due(self, job: AssignmentJob, topics: Mapping[str, TopicFacts], now_ms: int) -> bool:
        """Whether to assign by these topics now. Notes for how long their changes collect."""
        group = self._groups[job.group_id]
        if topics == group.topics:
            group.collects_until_ms, group.has_collected = None, False
            return False
        if group.topics is None or group.has_collected:
            return True
        if group.collects_until_ms is None:
            debounce_ms = topics_debounce_ms(job.side, job.generation)
            group.collects_until_ms = now_ms + debounce_ms if debounce_ms else None
        return group.collects_until_ms is None

    # --- jobs ------------------------------------------------------------------------------------

    def _jobs(self, group_ids: Iterable[str]) -> list[AssignmentJob]:
        """The jobs of these groups. Forgets those that have moved, and those that join anew: `want` is called for their
        next generation.
        """
        jobs = []
        for group_id in group_ids:
            owned = self._groups[group_id].owned
            job = None if owned.is_dropped else owned.shard.assignment_job(self._name, group_id)
            if job is not None:
                jobs.append(job)
            else:
                self._forget(group_id)
        return jobs

    def _compute(self, job: AssignmentJob, topics: Mapping[str, TopicFacts], failure: Exception | None = None) -> None:
        group = self._groups[job.group_id]
        group.is_computing, group.collects_until_ms, group.has_collected = True, None, False
        self._steps.append(Compute(group.owned, job, topics, failure))

    def settle(self, do: Compute, *, has_failed: bool, taken: bool) -> None:
        group_id = do.job.group_id
        group = self._groups.get(group_id)
        if group is None or group.owned is not do.owned:
            return
        group.is_computing = False
        if taken:
            # The members of a Stable group keep what they have. Its strategy is tried again with the next listing.
            group.topics = None if has_failed else do.topics
        elif group.owned.is_dropped or group.owned.shard.is_current(do.job):
            # The group has not changed, so its owner has: this replica decides nothing more for it.
            self._forget(group_id)
        else:
            group.topics = None
            self._waiting[group_id] = None

    def _forget(self, group_id: str) -> None:
        del self._groups[group_id]
        self._waiting.pop(group_id, None)


def _wanted(job: AssignmentJob, topics: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
    """The topics that the group's strategy wants."""
    wants_topic = job.side.wants_topic
    if wants_topic is None:
        return {}
    wanted = wants_topic(job.generation)
    return {name: facts for name, facts in topics.items() if wanted(name)}
