"""The `worker` protocol type: connectors and tasks, as Kafka Connect's workers share them; JSON, so any language can.

The leader calls `assign_work` of `rota.assignors.work` with what the members say; here is what they say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rota.assignors.work import CONNECTOR, Worker, WorkItem, WorkShare
from rota.types.json_object import decode_object
from rota.types.plugin import ProtocolType, Readable
from rota.types.wire_format import MalformedMetadata

PROTOCOL_TYPE: Final = "worker"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's metadata. `config_offset` is how far it has read the configuration: the furthest is the truth.

    `stopped_in` is the generation whose work to revoke this worker does not run any more. It says so where its former
    process ran that work: without it, its metadata would be the same as before, and no round would follow.
    """

    url: str = ""
    config_offset: int = -1
    running: tuple[WorkItem, ...] = ()
    stopped_in: int = -1

    def of_member(self, member_id: str, group_instance_id: str | None = None) -> Worker:
        """The same as `assign_work` wants it."""
        return Worker(member_id, group_instance_id or self.url or member_id, self.running)


def encode_state(state: WorkerState) -> bytes:
    """The same state is always the same bytes: a coordinator rebalances when they change."""
    stopped = {} if state.stopped_in < 0 else {"stopped_in": state.stopped_in}
    return _encoded(url=state.url, config_offset=state.config_offset, running=_listed(state.running), **stopped)


def decode_state(metadata: bytes) -> WorkerState:
    values = _decoded(metadata)
    url = values.get("url", "")
    config_offset, stopped_in = values.get("config_offset", -1), values.get("stopped_in", -1)
    if not isinstance(url, str) or type(config_offset) is not int or type(stopped_in) is not int:
        raise MalformedMetadata("a worker's url must be text, its config_offset and stopped_in numbers")
    return WorkerState(url, config_offset, _work(values.get("running", {})), stopped_in)


def encode_share(share: WorkShare) -> bytes:
    return _encoded(run=_listed(share.run), revoke=_listed(share.revoke), delay_ms=share.delay_ms)


def decode_share(assignment: bytes) -> WorkShare:
    """No bytes at all are no work: what the coordinator gives to a member that the leader left out."""
    if not assignment:
        return WorkShare()
    values = _decoded(assignment)
    delay_ms = values.get("delay_ms", 0)
    if type(delay_ms) is not int or delay_ms < 0:
        raise MalformedMetadata("delay_ms must be a number of milliseconds")
    return WorkShare(_work(values.get("run", {})), _work(values.get("revoke", {})), delay_ms)


def _read_state(metadata: bytes) -> Readable:
    state = decode_state(metadata)
    return {"url": state.url, "config_offset": state.config_offset, "running": _listed(state.running)}


def _read_share(assignment: bytes) -> Readable:
    share = decode_share(assignment)
    return {"run": _listed(share.run), "revoke": _listed(share.revoke), "delay_ms": share.delay_ms}


def _listed(work: Iterable[WorkItem]) -> dict[str, list[int]]:
    """Task numbers by connector; -1 is the connector itself."""
    by_connector: dict[str, list[int]] = {}
    for connector, task in sorted(set(work)):
        by_connector.setdefault(connector, []).append(task)
    return by_connector


def _work(by_connector: object) -> tuple[WorkItem, ...]:
    if not isinstance(by_connector, dict):
        raise MalformedMetadata("work must be lists of task numbers by connector")
    found: set[WorkItem] = set()
    for connector, tasks in by_connector.items():
        if not isinstance(tasks, list) or not all(type(task) is int and task >= CONNECTOR for task in tasks):
            raise MalformedMetadata(f"the tasks of {connector!r} must be a list of numbers")
        found |= {WorkItem(connector, task) for task in tasks}
    return tuple(sorted(found))


def _encoded(**values: Any) -> bytes:
    return json.dumps({"version": VERSION, **values}, separators=(",", ":")).encode()


def _decoded(data: bytes) -> dict[str, Any]:
    values = decode_object(data)
    if type(values.get("version")) is not int or values["version"] < 1:
        raise MalformedMetadata("not a JSON object with a version")
    return values


WORKER: Final = ProtocolType(PROTOCOL_TYPE, _read_state, _read_share)
