"""Drives the pure core through a scenario of the classic protocol in virtual time.

The format is described in the data's own `_doc`: raw steps, every answer with the step it answers and the
step during which it came, and the group's state after every step. The runner knows every `op` of the format;
anything it does not know is an error, so that a new kind of row cannot pass unread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rota.core.group.records import decode_entry, encode_entry
from rota.core.group.shard import Shard
from rota.core.group.state import Result, Timer
from rota.core.types import MalformedMetadata
from rota.core.types.consumer import Subscription, decode_subscription, encode_subscription
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits

NAMESPACE = "default"
SCENARIO_KEYS = {"id", "title", "config", "setup_steps", "steps", "events", "states", "note"}
KAFKA_LIMITS = Limits(
    min_session_timeout_ms=6_000,
    max_session_timeout_ms=1_800_000,
    initial_rebalance_delay_ms=3_000,
    group_max_size=2**31,
    empty_group_retention_ms=0,
)


@dataclass(frozen=True)
class Outcome:
    events: list[dict[str, Any]]
    states: list[str]


class ClassicRunner:
    """One scenario on one shard. After each step the journal and the rows are checked against the live state."""

    def __init__(self, scenario: dict[str, Any], defaults: dict[str, Any]) -> None:
        self.scenario = scenario
        self.defaults = defaults
        self.limits = _limits(scenario.get("config") or {})
        self.shard = Shard(0, self.limits)
        self.twin = Shard(0, self.limits)
        self.now_ms = 0
        self.step = 0
        self.events: list[dict[str, Any]] = []
        self.ids: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.calls: dict[int, tuple[int, str, Callable[[Any], dict[str, Any]]]] = {}
        self.timers: list[tuple[int, int, Timer]] = []
        self.timer_count = 0

    def run(self) -> Outcome:
        states = []
        _check_keys(self.scenario, SCENARIO_KEYS, "a scenario")
        for number, step in enumerate(self.scenario["steps"]):
            self.step = number
            arguments = dict(step)
            operation = arguments.pop("op", None)
            if operation not in _ARGUMENTS:
                raise UnknownFormat(f"step {number} has the op {operation!r}, which this runner does not know")
            _check_keys(arguments, _ARGUMENTS[operation] | OF_ANY_STEP, f"step {number}, {operation},")
            getattr(self, f"_do_{operation}")(arguments)
            states.append(self._state(step.get("group", "g")))
        return Outcome(self.events, states)

    # --- operations ---------------------------------------------------------------------------

    def _do_join(self, a: dict[str, Any]) -> None:
        label = a["as"]
        client_id, host = _client(a)
        request = m.JoinGroup(
            namespace=NAMESPACE,
            group_id=a.get("group", "g"),
            protocol_type=a.get("type", self.defaults["protocol_type"]),
            protocols=tuple(m.Protocol(name, _metadata(text)) for name, text in a["protocols"]),
            session_timeout_ms=a.get("session", self.defaults["session_ms"]),
            rebalance_timeout_ms=a.get("rebalance", self.defaults["rebalance_ms"]),
            member_id=self._id(a.get("member", "")),
            group_instance_id=a.get("instance"),
            client_id=client_id or label,
            host=host,
            reason=a.get("reason", ""),
            new_member_id=f"{label}#{self.step}",
        )
        self.labels[request.new_member_id] = label
        before = self._known_ids(request.group_id)
        self._handle(request, "join", self._join_event)
        if request.new_member_id in self._known_ids(request.group_id) - before:
            self.ids[label] = request.new_member_id

    def _do_sync(self, a: dict[str, Any]) -> None:
        assign = a.get("assign") or {}
        request = m.SyncGroup(
            namespace=NAMESPACE,
            group_id=a.get("group", "g"),
            member_id=self._id(a["member"]),
            generation_id=a["gen"],
            group_instance_id=a.get("instance"),
            protocol_type=a.get("type"),
            protocol_name=a.get("protocol"),
            assignments=tuple((self._id(who), what.encode()) for who, what in assign.items()),
        )
        self._handle(request, "sync", self._sync_event)

    def _do_hb(self, a: dict[str, Any]) -> None:
        request = m.Heartbeat(
            NAMESPACE, a.get("group", "g"), self._id(a["member"]), a["gen"], group_instance_id=a.get("instance")
        )
        self._handle(request, "hb", lambda reply: {})

    def _do_leave(self, a: dict[str, Any]) -> None:
        members = tuple(self._leaving(row) for row in a["members"])
        self._handle(m.LeaveGroup(NAMESPACE, a.get("group", "g"), members), "leave", self._leave_event)

    def _do_commit(self, a: dict[str, Any]) -> None:
        offsets = tuple(_offset_to_commit(row, a.get("retention")) for row in a["offsets"])
        request = m.CommitOffsets(
            NAMESPACE, a.get("group", "g"), a["gen"], offsets, self._id(a.get("member", "")), a.get("instance")
        )
        self._handle(request, "commit", _partitions_event)

    def _do_fetch(self, a: dict[str, Any]) -> None:
        request = m.FetchOffsets(NAMESPACE, a.get("group", "g"), _topics(a.get("topics")))
        self._handle(request, "fetch", lambda reply: {"offsets": [_offset(o) for o in reply.offsets]})

    def _do_odelete(self, a: dict[str, Any]) -> None:
        request = m.DeleteOffsets(NAMESPACE, a.get("group", "g"), _topics(a["topics"]) or ())
        self._handle(request, "odelete", _partitions_event)

    def _do_describe(self, a: dict[str, Any]) -> None:
        groups = [self._described(group, self._ask(m.DescribeGroup(NAMESPACE, group))) for group in a["groups"]]
        self._event(self.step, "describe", {"error": "NONE", "groups": groups})

    def _do_list(self, a: dict[str, Any]) -> None:
        states, types, protocol_types = (tuple(a.get(name) or ()) for name in ("states", "types", "protocol_types"))
        request = m.ListGroups(NAMESPACE, states, types, protocol_types)
        listed = [f"{g.group_id}:{g.state}:{g.protocol_type}:{g.group_type}" for g in self._ask(request).groups]
        self._event(self.step, "list", {"error": "NONE", "groups": listed})

    def _do_delete(self, a: dict[str, Any]) -> None:
        results = [f"{group}={self._ask(m.DeleteGroup(NAMESPACE, group)).error}" for group in a["groups"]]
        self._event(self.step, "delete", {"error": "NONE", "results": results})

    def _do_sweep(self, a: dict[str, Any]) -> None:
        if "retention" in a:
            self.shard.limits = replace(self.limits, offsets_retention_ms=a["retention"])
        result, gone = self.shard.sweep(self.now_ms)
        self._take(result)
        self._event(self.step, "sweep", {"error": "NONE", "tombstones": gone})

    def _do_load(self, _a: dict[str, Any]) -> None:
        """The coordinator restarts: it knows durable facts only, and parked callers receive no answer."""
        self.calls.clear()
        self.timers.clear()
        self.shard, result = Shard.load(self.shard.image(), self.limits, self.now_ms)
        self.twin, _ = Shard.load(self.shard.image(), self.limits, self.now_ms)
        self._take(result)

    def _do_advance(self, a: dict[str, Any]) -> None:
        target_ms = self.now_ms + a["ms"]
        while self.timers and self.timers[0][0] <= target_ms:
            self.now_ms, _, timer = heapq.heappop(self.timers)
            self._take(self.shard.on_timer(timer, self.now_ms))
        self.now_ms = target_ms

    # --- the way of a request -----------------------------------------------------------------

    def _handle(self, request: m.Request, kind: str, show: Callable[[Any], dict[str, Any]]) -> None:
        self.calls[self.step] = (self.step, kind, show)
        self._take(self.shard.handle(request, self.step, self.now_ms))

    def _ask(self, request: m.Request) -> Any:
        result = self.shard.handle(request, -1, self.now_ms)
        ((_, reply),) = result.replies
        result.replies.clear()
        self._take(result)
        return reply

    def _take(self, result: Result) -> None:
        for timer in result.timers:
            self.timer_count += 1
            heapq.heappush(self.timers, (max(timer.at_ms, self.now_ms), self.timer_count, timer))
        for call, reply in result.replies:
            step, kind, show = self.calls.pop(call)
            self._event(step, kind, {"error": str(reply.error), **show(reply)})
        for entry in result.records:
            self.twin.replay(decode_entry(encode_entry(entry)))
        assert self.twin.image() == self.shard.image(), "the journal does not fold to the live state"

    def _event(self, step: int, kind: str, fields: dict[str, Any]) -> None:
        self.events.append({"step": step, "at_step": self.step, "t": self.now_ms, "kind": kind, **fields})

    # --- how things are written in the data -----------------------------------------------------

    def _leaving(self, row: dict[str, Any]) -> m.LeavingMember:
        _check_keys(row, {"member", "instance", "reason"}, "a leaving member")
        return m.LeavingMember(self._id(row.get("member", "")), row.get("instance"), row.get("reason", ""))

    def _id(self, text: str) -> str:
        return self.ids.get(text[1:], text) if text.startswith("$") else text

    def _label(self, member_id: str) -> str:
        return self.labels.get(member_id, member_id)

    def _known_ids(self, group_id: str) -> set[str]:
        group = self.shard.groups.get((NAMESPACE, group_id))
        return set() if group is None else {*group.members, *group.pending}

    def _with_instance(self, member_id: str, instance_id: str | None) -> str:
        label = self._label(member_id) or '""'
        return f"{label}@{instance_id}" if instance_id is not None else label

    def _join_event(self, reply: m.JoinReply) -> dict[str, Any]:
        event: dict[str, Any] = {
            "members": [
                f"{self._with_instance(x.member_id, x.group_instance_id)}={_readable(x.metadata)}"
                for x in reply.members
            ]
        }
        if reply.member_id:
            event["member"] = self._label(reply.member_id)
        if reply.error is ErrorCode.NONE:
            event |= {
                "gen": reply.generation_id,
                "leader": self._label(reply.leader_id),
                "protocol": reply.protocol_name,
                "type": reply.protocol_type,
            }
        return event | ({"skip_assignment": True} if reply.skip_assignment else {})

    def _sync_event(self, reply: m.SyncReply) -> dict[str, Any]:
        if reply.error is not ErrorCode.NONE:
            return {}
        event = {"protocol": reply.protocol_name, "type": reply.protocol_type}
        return event | ({"assignment": reply.assignment.decode()} if reply.assignment else {})

    def _leave_event(self, reply: m.LeaveReply) -> dict[str, Any]:
        if not reply.members or reply.error is not ErrorCode.NONE:
            return {}
        return {
            "members": [f"{self._with_instance(x.member_id, x.group_instance_id)}={x.error}" for x in reply.members]
        }

    def _described(self, group_id: str, reply: m.DescribeReply) -> dict[str, Any]:
        # Kafka answers an unknown group with the state Dead and no error (DescribeGroups up to v5).
        return {
            "group": group_id,
            "error": "NONE",
            "state": reply.state,
            "type": reply.protocol_type,
            "protocol": reply.protocol_name,
            "members": [
                f"{self._with_instance(x.member_id, x.group_instance_id)}"
                f"{{meta={_readable(x.metadata)},assign={x.assignment.decode()}}}"
                for x in reply.members
            ],
        }

    def _state(self, group_id: str) -> str:
        group = self.shard.groups.get((NAMESPACE, group_id))
        if group is None:
            return "no group"
        parts = [f"{group.state} g{group.generation_id}"]
        if group.members:
            parts.append(f"L={self._label(group.leader_id or '')}")
            parts.append("{" + ",".join(sorted(self._label(member_id) for member_id in group.members)) + "}")
        if group.pending:
            parts.append(f"+{len(group.pending)} pending id{'s' if len(group.pending) > 1 else ''}")
        return " ".join(parts)


class UnknownFormat(ValueError):
    """The data says something that this runner does not know, or that the core cannot do."""


def _check_keys(row: dict[str, Any], known: set[str], where: str) -> None:
    unknown = row.keys() - known
    if unknown:
        raise UnknownFormat(f"{where} has {sorted(unknown)}, which this runner does not know")


_LIMITS: dict[str, tuple[str, int]] = {
    "retention_min": ("offsets_retention_ms", 60_000),
    "retention_ms": ("offsets_retention_ms", 1),
    "retention": ("offsets_retention_ms", 1),
    "max_size": ("group_max_size", 1),
    "initial_delay": ("initial_rebalance_delay_ms", 1),
    "min_session": ("min_session_timeout_ms", 1),
    "max_session": ("max_session_timeout_ms", 1),
}
"""By key of a scenario's `config`: the limit of ours, and how many of its units one of the data's is."""


def _limits(config: dict[str, Any]) -> Limits:
    _check_keys(config, set(_LIMITS), "config")
    return replace(KAFKA_LIMITS, **{_LIMITS[key][0]: value * _LIMITS[key][1] for key, value in config.items()})


def _client(arguments: dict[str, Any]) -> tuple[str, str]:
    """A client id, or an object of `id` and `host`, as the core gets them from a connection."""
    client = arguments.get("client", "")
    if isinstance(client, dict):
        _check_keys(client, {"id", "host"}, "client")
        return client.get("id", ""), client.get("host", arguments.get("host", ""))
    return client, arguments.get("host", "")


def _offset_to_commit(row: Any, retention_ms: int | None) -> m.OffsetToCommit:
    """`[topic, partition, offset, metadata?]`, or an object with these names.

    `retention_ms` is the retention of the whole commit, -1 or None where it leaves that to the server, as in
    Kafka's OffsetCommit; an object may name one of its own.
    """
    if isinstance(row, dict):
        _check_keys(row, {"topic", "partition", "offset", "metadata", "leader_epoch", "retention"}, "an offset")
        metadata, epoch = _text(row.get("metadata") or ""), row.get("leader_epoch")
        own_ms = _retention_ms(row.get("retention", retention_ms))
        return m.OffsetToCommit(row["topic"], row["partition"], row["offset"], epoch, metadata, own_ms)
    topic, partition, offset, *rest = row
    if len(rest) > 1 or not all(isinstance(each, str) for each in rest):
        raise UnknownFormat(f"an offset has {rest} after its number: only its metadata is known there")
    return m.OffsetToCommit(
        topic, partition, offset, metadata=_text(*rest), retention_time_ms=_retention_ms(retention_ms)
    )


def _retention_ms(given: int | None) -> int | None:
    return None if given == -1 else given


OF_ANY_STEP = {"as", "client", "host", "note"}
_ARGUMENTS: dict[str, set[str]] = {
    "join": {"group", "type", "protocols", "session", "rebalance", "member", "instance", "reason"},
    "sync": {"group", "member", "gen", "instance", "assign", "type", "protocol"},
    "hb": {"group", "member", "gen", "instance"},
    "leave": {"group", "members"},
    "commit": {"group", "gen", "offsets", "member", "instance", "retention"},
    "fetch": {"group", "topics"},
    "odelete": {"group", "topics"},
    "describe": {"groups"},
    "list": {"states", "types", "protocol_types"},
    "delete": {"groups"},
    "sweep": {"retention"},
    "load": set(),
    "advance": {"ms"},
}


def _metadata(text: str) -> bytes:
    if text.startswith("sub:"):
        topics = tuple(topic for topic in text.removeprefix("sub:").split(",") if topic)
        return encode_subscription(Subscription(topics=topics))
    return text.encode()


def _readable(metadata: bytes) -> str:
    try:
        return "sub:" + ",".join(decode_subscription(metadata).topics)
    except MalformedMetadata:
        return metadata.decode()


def _text(text: str = "") -> str:
    return "x" * int(text.removeprefix("len:")) if text.startswith("len:") else text


def _topics(topics: list[list[Any]] | None) -> tuple[m.TopicPartitions, ...] | None:
    return None if topics is None else tuple(m.TopicPartitions(name, tuple(parts)) for name, parts in topics)


def _partitions_event(reply: Any) -> dict[str, Any]:
    if reply.error is not ErrorCode.NONE:
        return {}
    return {"partitions": [f"{p.topic}-{p.partition}={p.error}" for p in reply.partitions]}


def _offset(fetched: m.FetchedOffset) -> str:
    metadata = fetched.metadata if len(fetched.metadata) < 100 else f"<{len(fetched.metadata)} chars>"
    return f"{fetched.topic}-{fetched.partition}={fetched.offset}/{metadata}"
