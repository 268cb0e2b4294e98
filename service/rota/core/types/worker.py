"""The `worker` protocol type: connectors and tasks, as Kafka Connect's workers share them, in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rota.core.assignors.work import CONNECTOR, HeldBack, Memory, Worker, WorkItem, WorkShare, assign_work
from rota.core.types.plugin import Departed, Generation, JoinedWith, ProtocolType, Readable, ServerSide, Units
from rota.core.types.topics import TopicFacts, WantedTopics, describe_changes, topic_matcher
from rota.core.types.topics import topic_regex as check_regex
from rota.core.types.wire_format import (
    MalformedMetadata,
    by_topic,
    decode_object,
    encode_object,
    names_in,
    topics_debounce_in,
)
from rota.protocol.defaults import RETURN_DELAY_MS
from rota.protocol.limits import MAX_DELAY_MS

# --- metadata and shares --------------------------------------------------------------------------

# The leader calls `assign_work` of `rota.core.assignors.work` with what the members say; here is what they say. Where
# the coordinator assigns instead, it does so too.


PROTOCOL_TYPE: Final = "worker"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's metadata. `config_offset` is how far it has read the configuration: the furthest is the truth.

    `stopped_in` is the generation whose work to revoke this worker does not run any more. It says so where its former
    process ran that work: without it, its metadata would be the same as before, and no round would follow.

    The last five are for the coordinator, where it assigns: which registered topics are the connectors, by names or
    beginnings (`orders-*`) or by an expression, for how long a departed worker's work waits for it, for how long
    changes of topics collect, and which topics are no connectors though they are meant.
    """

    url: str = ""
    config_offset: int = -1
    running: tuple[WorkItem, ...] = ()
    stopped_in: int = -1
    topics: tuple[str, ...] = ()
    topic_regex: str | None = None
    scheduled_rebalance_max_delay_ms: int = RETURN_DELAY_MS
    topics_debounce_ms: int = 0
    topics_except: tuple[str, ...] = ()

    def identity(self, member_id: str, group_instance_id: str | None) -> str:
        """The name of the worker that survives its restarts."""
        return group_instance_id or self.url or member_id

    def of_member(self, member_id: str, group_instance_id: str | None = None) -> Worker:
        """The same as `assign_work` wants it."""
        return Worker(member_id, self.identity(member_id, group_instance_id), self.running)


def encode_state(state: WorkerState) -> bytes:
    """The same state is always the same bytes: a coordinator rebalances when they change."""
    more: dict[str, Any] = {} if state.stopped_in < 0 else {"stopped_in": state.stopped_in}
    if state.topics or state.topic_regex is not None:
        more |= {
            "topics": list(state.topics),
            "scheduled_rebalance_max_delay_ms": state.scheduled_rebalance_max_delay_ms,
        }
        more |= {"topic_regex": state.topic_regex} if state.topic_regex is not None else {}
        more |= {"topics_debounce_ms": state.topics_debounce_ms} if state.topics_debounce_ms else {}
        more |= {"topics_except": list(state.topics_except)} if state.topics_except else {}
    return encoded(url=state.url, config_offset=state.config_offset, running=by_topic(state.running), **more)


def decode_state(metadata: bytes) -> WorkerState:
    values = decoded(metadata)
    url, topics, regex = values.get("url", ""), names_in(values, "topics"), values.get("topic_regex")
    config_offset, stopped_in = values.get("config_offset", -1), values.get("stopped_in", -1)
    delay_ms = values.get("scheduled_rebalance_max_delay_ms", RETURN_DELAY_MS)
    if not isinstance(url, str) or type(config_offset) is not int or type(stopped_in) is not int:
        raise MalformedMetadata("a worker's url must be text, its config_offset and stopped_in numbers")
    if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_DELAY_MS:
        raise MalformedMetadata(f'"scheduled_rebalance_max_delay_ms" must be a number from 0 to {MAX_DELAY_MS}')
    if regex is not None:
        check_regex(regex)
    running, debounce_ms = work_in(values.get("running", {})), topics_debounce_in(values)
    excepted = names_in(values, "topics_except")
    return WorkerState(url, config_offset, running, stopped_in, topics, regex, delay_ms, debounce_ms, excepted)


def encode_share(share: WorkShare, config_offset: int = -1, **more: Any) -> bytes:
    """`config_offset` is how far the configuration was read that led to this share: a worker that has not read as far
    reads on before it begins.
    """
    read = {} if config_offset < 0 else {"config_offset": config_offset}
    return encoded(run=by_topic(share.run), revoke=by_topic(share.revoke), delay_ms=share.delay_ms, **read, **more)


def decode_share(assignment: bytes) -> WorkShare:
    """No bytes at all are no work: what the coordinator gives to a member that the leader left out."""
    if not assignment:
        return WorkShare()
    values = decoded(assignment)
    delay_ms = values.get("delay_ms", 0)
    if type(delay_ms) is not int or delay_ms < 0:
        raise MalformedMetadata("delay_ms must be a number of milliseconds")
    return WorkShare(work_in(values.get("run", {})), work_in(values.get("revoke", {})), delay_ms)


def memory_fields(memory: Memory, now_ms: int) -> dict[str, Any]:
    """A leader's memory as a field of each share, so that the next leader has it; times are relative."""
    given = {identity: by_topic(work) for identity, work in sorted(memory.given.items())}
    away = {
        identity: {"run": by_topic(held.work), "left_ms": max(0, held.until_ms - now_ms)}
        for identity, held in sorted(memory.away.items())
    }
    return {"memory": {"given": given, "away": away}}


def memory_in(assignment: bytes, now_ms: int) -> Memory | None:
    """The memory of the leader that made this share; None if the leader sent none."""
    found = decoded(assignment).get("memory") if assignment else None
    if found is None:
        return None
    try:
        given = {identity: frozenset(work_in(work)) for identity, work in found["given"].items()}
        away = {
            identity: HeldBack(frozenset(work_in(held["run"])), now_ms + int(held["left_ms"]))
            for identity, held in found["away"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedMetadata('"memory" must be the work that was given, and that waits, by worker') from error
    return Memory(given, away)


def config_offset_in(assignment: bytes) -> int:
    """See `encode_share`; -1 if the share does not say."""
    found = decoded(assignment).get("config_offset", -1) if assignment else -1
    return found if type(found) is int else -1


def read_state(metadata: bytes) -> Readable:
    state = decode_state(metadata)
    values: dict[str, Any] = {
        "url": state.url,
        "config_offset": state.config_offset,
        "running": by_topic(state.running),
    }
    if state.topics or state.topic_regex is not None:
        values |= {"topics": list(state.topics), "topic_regex": state.topic_regex}
        values |= {"topics_except": list(state.topics_except)} if state.topics_except else {}
        values["scheduled_rebalance_max_delay_ms"] = state.scheduled_rebalance_max_delay_ms
    return values


def read_share(assignment: bytes) -> Readable:
    share = decode_share(assignment)
    values: dict[str, Any] = {
        "run": by_topic(share.run),
        "revoke": by_topic(share.revoke),
        "delay_ms": share.delay_ms,
    }
    if (config_offset := config_offset_in(assignment)) >= 0:
        values["config_offset"] = config_offset
    away = decoded(assignment).get("away") if assignment else None
    return values | ({"away": away} if away else {})


def work_in(by_connector: object) -> tuple[WorkItem, ...]:
    if not isinstance(by_connector, dict):
        raise MalformedMetadata("work must be lists of task numbers by connector")
    found: set[WorkItem] = set()
    for connector, tasks in by_connector.items():
        if not isinstance(tasks, list) or not all(type(task) is int and task >= CONNECTOR for task in tasks):
            raise MalformedMetadata(f"the tasks of {connector!r} must be a list of numbers")
        found |= {WorkItem(connector, task) for task in tasks}
    return tuple(sorted(found))


def encoded(**values: Any) -> bytes:
    return encode_object({"version": VERSION, **values})


def decoded(data: bytes) -> dict[str, Any]:
    values = decode_object(data)
    if type(values.get("version")) is not int or values["version"] < 1:
        raise MalformedMetadata("not a JSON object with a version")
    return values


# --- shares by the coordinator --------------------------------------------------------------------

# Sharing connectors and tasks by the coordinator: `server:incremental` for members of `worker` groups.
#
# A connector is a registered topic, its tasks are the topic's partitions, `weights` of the topic are those of the
# tasks. Each member lists its running work. One round names the work to stop; it joins again when it has, and in the
# next round another member is given that. What a departed member ran waits for it. That memory is in the shares, so
# that it outlives members, leaders and owners.


PROTOCOL_NAME: Final = "server:incremental"


@dataclass(frozen=True, slots=True)
class GivenWork:
    """A share, and the work that waits for members that are away, by what survives their restarts."""

    share: WorkShare = field(default_factory=WorkShare)
    away: Mapping[str, HeldBack] = field(default_factory=dict)


def encode_given(given: GivenWork, config_offset: int) -> bytes:
    away = {
        identity: {"run": by_topic(held.work), "until_ms": held.until_ms}
        for identity, held in sorted(given.away.items())
    }
    return encode_share(given.share, config_offset, **({"away": away} if away else {}))


def decode_given(assignment: bytes) -> GivenWork:
    """Bytes that are no share are no work: another protocol's leader may have left them."""
    try:
        return GivenWork(decode_share(assignment), _away_in(decoded(assignment).get("away", {})) if assignment else {})
    except MalformedMetadata:
        return GivenWork()


def check(metadata: bytes) -> None:
    """Raise `MalformedMetadata` for a member that does not say which connectors there are, or what it runs."""
    state = decode_state(metadata)
    if not state.topics and state.topic_regex is None:
        raise MalformedMetadata('"topics" or "topic_regex" must say which registered topics are the connectors')
    if "running" not in decode_object(metadata):
        raise MalformedMetadata('"running" must say what the worker runs: {} for nothing')


def assign(generation: Generation, topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
    """The work of all members, of the connectors that a member names and that are registered."""
    states = {member.member_id: decode_state(member.metadata) for member in generation.members}
    delay_ms = max((state.scheduled_rebalance_max_delay_ms for state in states.values()), default=0)
    workers = [_worker(member, states[member.member_id]) for member in generation.members]
    shares, memory = assign_work(
        _configured(topics),
        workers,
        _memory(generation, workers, delay_ms),
        now_ms=generation.now_ms,
        scheduled_rebalance_max_delay_ms=delay_ms,
        weights=_weights(topics),
    )
    # The coordinator itself assigns again when work has waited for long enough: no member has to call for that.
    config_offset = max((state.config_offset for state in states.values()), default=-1)
    return {
        member_id: encode_given(GivenWork(replace(share, delay_ms=0), memory.away), config_offset)
        for member_id, share in shares.items()
    }


def again_at_ms(assignments: Mapping[str, bytes]) -> int | None:
    """When work has waited for long enough, so that it is to be given to another member."""
    away = next((decode_given(share).away for share in assignments.values() if share), {})
    return min((held.until_ms for held in away.values()), default=None)


def takes_away(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Whether a member loses work: it has to stop, and to say so, before another one begins."""
    return any(
        not set(decode_given(share).share.run) <= set(decode_given(after.get(member_id, b"")).share.run)
        for member_id, share in before.items()
    )


def describe(_before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """How much runs, how much is to be stopped first, and the absent workers that work waits for."""
    given = [decode_given(share) for share in after.values()]
    parts = [f"{sum(len(each.share.run) for each in given)} to run"]
    if revoked := sum(len(each.share.revoke) for each in given):
        parts.append(f"{revoked} to stop first")
    away = given[0].away if given else {}
    parts += [f"{len(held.work)} wait for {identity}" for identity, held in sorted(away.items())[:5]]
    return ", ".join((*parts, f"{len(away) - 5} more are away") if len(away) > 5 else parts)


def describe_topics(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """How many tasks of each connector are given out, where that changes: `orders 4 → 6`."""
    return describe_changes(_tasks(before), _tasks(after))


def topics_debounce_ms(generation: Generation) -> int:
    return max((decode_state(member.metadata).topics_debounce_ms for member in generation.members), default=0)


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """None if members assign among themselves, which says nothing of topics, and for patterns."""
    wanted = _wanted(metadata)
    return None if wanted.has_patterns or not wanted.names else wanted.names


def subscribes(metadata: bytes, topic: str) -> bool:
    return topic_matcher([_wanted(metadata)])(topic)


def _wants_topic(generation: Generation) -> Callable[[str], bool]:
    return topic_matcher([_wanted(member.metadata) for member in generation.members])


def _wanted(metadata: bytes) -> WantedTopics:
    state = decode_state(metadata)
    return WantedTopics(frozenset(state.topics), state.topic_regex, frozenset(state.topics_except))


def _configured(topics: Mapping[str, TopicFacts]) -> frozenset[WorkItem]:
    return frozenset(
        WorkItem(name, task) for name, facts in topics.items() for task in (CONNECTOR, *range(facts.partitions))
    )


def _weights(topics: Mapping[str, TopicFacts]) -> dict[WorkItem, float]:
    return {
        WorkItem(name, task): weight for name, facts in topics.items() for task, weight in enumerate(facts.weights())
    }


def _worker(member: JoinedWith, state: WorkerState) -> Worker:
    """The worker with all that it may run: also its last share, which it may not have known when it joined."""
    running = {*state.running, *decode_given(member.former).share.run}
    return Worker(member.member_id, state.identity(member.member_id, member.group_instance_id), tuple(sorted(running)))


def _memory(generation: Generation, workers: Iterable[Worker], delay_ms: int) -> Memory:
    """What was given last, and what waits: by the shares of the members, and of those that have gone since."""
    formers = [decode_given(member.former) for member in generation.members]
    given = {worker.identity: frozenset(former.share.run) for worker, former in zip(workers, formers, strict=True)}
    away: dict[str, HeldBack] = {}
    for gone in generation.departed:
        former = decode_given(gone.former)
        away |= former.away
        away[_identity(gone)] = HeldBack(frozenset(former.share.run), gone.at_ms + delay_ms)
    for former in formers:
        away |= former.away
    # The clock of another owner may be behind that of the one before: then work would wait for as long as they differ.
    latest_ms = generation.now_ms + delay_ms
    return Memory(
        given, {identity: replace(held, until_ms=min(held.until_ms, latest_ms)) for identity, held in away.items()}
    )


def _identity(gone: Departed) -> str:
    try:
        return decode_state(gone.metadata).identity(gone.member_id, gone.group_instance_id)
    except MalformedMetadata:
        return gone.group_instance_id or gone.member_id


def _away_in(values: object) -> dict[str, HeldBack]:
    if not isinstance(values, dict):
        raise MalformedMetadata('"away" must be an object')
    found: dict[str, HeldBack] = {}
    for identity, held in values.items():
        until_ms: Any = held.get("until_ms") if isinstance(held, dict) else None
        if type(until_ms) is not int:
            raise MalformedMetadata('"until_ms" must be a number of milliseconds')
        found[identity] = HeldBack(frozenset(work_in(held.get("run", {}))), until_ms)
    return found


def _tasks(shares: Mapping[str, bytes]) -> dict[str, TopicFacts]:
    """The tasks of each connector that there is still: that members run, are to stop first, or are awaited for."""
    every = [decode_given(share) for share in shares.values()]
    kept = {work for given in every for work in given.share.run}
    kept |= {work for given in every for held in given.away.values() for work in held.work}
    connectors = {work.connector for work in kept}
    moving = {work for given in every for work in given.share.revoke if work.connector in connectors}
    counts = Counter(work.connector for work in kept | moving if work.task != CONNECTOR)
    return {connector: TopicFacts(count) for connector, count in counts.items()}


def units_of(assignment: bytes) -> list[str]:
    """The names of the work that a share has run, such as `orders/0`; `orders/-1` is the connector itself."""
    return [f"{connector}/{task}" for connector, task in decode_share(assignment).run]


def without_units(assignment: bytes, units: frozenset[str]) -> bytes:
    """The share less this work; whatever else it says stays."""
    run = [item for item in decode_share(assignment).run if f"{item.connector}/{item.task}" not in units]
    return encoded(**{**decoded(assignment), "run": by_topic(run)}) if assignment else assignment


WORKER: Final = ProtocolType(
    PROTOCOL_TYPE,
    read_state,
    read_share,
    topics_of,
    ServerSide(
        PROTOCOL_NAME.__eq__,
        assign,
        check,
        _wants_topic,
        takes_away,
        describe=describe,
        describe_topics=describe_topics,
        topics_debounce_ms=topics_debounce_ms,
        again_at_ms=again_at_ms,
    ),
    subscribes,
    Units(units_of, without_units),
)
