"""Joins and syncs in JSON, the hot path of a rebalance: plainly well-formed input is read without the records.

All other input is None here, and goes to the shape, which names its error. The fields are those of the shape.
"""

from __future__ import annotations

from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import SESSION_TIMEOUT_MS, Limits
from rota.protocol.messages import NO_GENERATION, JoinGroup, Protocol, SyncGroup
from rota.wire.requests import (
    ASSIGNMENTS,
    CLIENT_ID,
    GENERATION_ID,
    MEMBER_ID,
    METADATA,
    PROTOCOL_NAME,
    PROTOCOL_TYPE,
    REBALANCE_TIMEOUT,
    SESSION_TIMEOUT,
    WAIT,
    default_rebalance_timeout_ms,
)

_JOIN = frozenset(
    {
        "member_id",
        "client_id",
        "protocol_type",
        "protocols",
        "session_timeout_ms",
        "rebalance_timeout_ms",
        "wait_ms",
        "last_generation_id",
    }
)
_SYNC = frozenset({"member_id", "generation_id", "assignments", "wait_ms"})


def read_plain_join(
    document: dict[str, Any], namespace: str, group_id: str, host: str, limits: Limits
) -> JoinGroup | None:
    """A join of a dynamic member without a reason, as most are; `host` is the address that it comes from."""
    offered, get = document.get("protocols"), document.get
    if not document.keys() <= _JOIN or type(offered) is not list or len(offered) > limits.max_protocols:
        return None
    try:
        protocol_type = PROTOCOL_TYPE.decode(get("protocol_type"), limits)
        protocols = []
        for each in offered:
            if type(each) is not dict or len(each) != 2:
                return None
            name, metadata = PROTOCOL_NAME.decode(each.get("name"), limits), each.get("metadata")
            protocols.append(Protocol(name, METADATA.decode(metadata, limits)))
        if "rebalance_timeout_ms" in document:
            rebalance_timeout_ms = REBALANCE_TIMEOUT.decode(get("rebalance_timeout_ms"), limits)
        else:
            rebalance_timeout_ms = default_rebalance_timeout_ms(protocol_type)
        return JoinGroup(
            namespace,
            group_id,
            protocol_type,
            tuple(protocols),
            SESSION_TIMEOUT.decode(get("session_timeout_ms"), limits)
            if "session_timeout_ms" in document
            else SESSION_TIMEOUT_MS,
            rebalance_timeout_ms,
            MEMBER_ID.decode(get("member_id", ""), limits),
            None,
            CLIENT_ID.decode(get("client_id", ""), limits),
            host,
            "",
            WAIT.decode(get("wait_ms", JoinGroup.default_wait_ms), limits),
            "",
            GENERATION_ID.decode(get("last_generation_id"), limits)
            if "last_generation_id" in document
            else NO_GENERATION,
        )
    except RejectedRequest:
        return None


def read_plain_sync(document: dict[str, Any], namespace: str, group_id: str, limits: Limits) -> SyncGroup | None:
    """A sync of a dynamic member that checks no protocol, or a leader's with assignments, as most are."""
    get = document.get
    if not document.keys() <= _SYNC:
        return None
    try:
        return SyncGroup(
            namespace,
            group_id,
            MEMBER_ID.decode(get("member_id"), limits),
            GENERATION_ID.decode(get("generation_id"), limits),
            None,
            None,
            None,
            ASSIGNMENTS.decode(get("assignments"), limits) if "assignments" in document else (),
            None,
            WAIT.decode(get("wait_ms", SyncGroup.default_wait_ms), limits),
        )
    except RejectedRequest:
        return None
