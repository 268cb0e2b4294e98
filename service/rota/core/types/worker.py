"""The `worker` protocol type: connectors and tasks, as Kafka Connect's workers share them; JSON, so any language can.

The leader calls `assign_work` of `rota.core.assignors.work` with what the members say; here is what they say. Where the
coordinator assigns instead, it does so too (`worker_server.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rota.core.assignors.work import CONNECTOR, HeldBack, Memory, Worker, WorkItem, WorkShare
from rota.core.types.json_object import decode_object, names_in
from rota.core.types.plugin import Readable
from rota.core.types.topic_regex import topic_regex as check_regex
from rota.core.types.user_data import topics_debounce_in
from rota.core.types.wire_format import MalformedMetadata
from rota.protocol.defaults import RETURN_DELAY_MS
from rota.protocol.limits import MAX_DELAY_MS

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
        """What survives the worker's restarts."""
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
    return encoded(url=state.url, config_offset=state.config_offset, running=listed(state.running), **more)


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
    return encoded(run=listed(share.run), revoke=listed(share.revoke), delay_ms=share.delay_ms, **read, **more)


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
    given = {identity: listed(work) for identity, work in sorted(memory.given.items())}
    away = {
        identity: {"run": listed(held.work), "left_ms": max(0, held.until_ms - now_ms)}
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
    """See `encode_share`; -1 where the share does not say."""
    found = decoded(assignment).get("config_offset", -1) if assignment else -1
    return found if type(found) is int else -1


def read_state(metadata: bytes) -> Readable:
    state = decode_state(metadata)
    values: dict[str, Any] = {"url": state.url, "config_offset": state.config_offset, "running": listed(state.running)}
    if state.topics or state.topic_regex is not None:
        values |= {"topics": list(state.topics), "topic_regex": state.topic_regex}
        values |= {"topics_except": list(state.topics_except)} if state.topics_except else {}
        values["scheduled_rebalance_max_delay_ms"] = state.scheduled_rebalance_max_delay_ms
    return values


def read_share(assignment: bytes) -> Readable:
    share = decode_share(assignment)
    values: dict[str, Any] = {"run": listed(share.run), "revoke": listed(share.revoke), "delay_ms": share.delay_ms}
    if (config_offset := config_offset_in(assignment)) >= 0:
        values["config_offset"] = config_offset
    away = decoded(assignment).get("away") if assignment else None
    return values | ({"away": away} if away else {})


def listed(work: Iterable[WorkItem]) -> dict[str, list[int]]:
    """Task numbers by connector; -1 is the connector itself."""
    by_connector: dict[str, list[int]] = {}
    for connector, task in sorted(set(work)):
        by_connector.setdefault(connector, []).append(task)
    return by_connector


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
    return json.dumps({"version": VERSION, **values}, separators=(",", ":")).encode()


def decoded(data: bytes) -> dict[str, Any]:
    values = decode_object(data)
    if type(values.get("version")) is not int or values["version"] < 1:
        raise MalformedMetadata("not a JSON object with a version")
    return values
