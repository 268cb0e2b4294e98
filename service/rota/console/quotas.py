"""What namespaces take of what they may: their quotas, and how near they are to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rota.access.actions import SEE_QUOTA
from rota.access.buckets import BURST_S
from rota.access.quotas import Quota, Stored, Taken, quota_of
from rota.access.rules import ANY
from rota.api.access.guard import Guard
from rota.console.desk import Desk
from rota.protocol.errors import RejectedRequest

_NAMESPACES = 100
_ALWAYS = ("groups", "members", "parked", "requests", "bytes")
"""Columns that are shown also where no namespace has a limit."""


@dataclass(frozen=True, slots=True)
class Use:
    """The usage of one quota. `limit_text` describes the limit, where it is not `most` itself."""

    name: str
    used: int
    most: int
    limit_text: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """A namespace against its quota, which is its own or that of all others; without `uses` it has none."""

    name: str
    is_own: bool
    uses: tuple[Use, ...]


async def quotas_page(desk: Desk, guard: Guard | None) -> dict[str, Any]:
    """The namespaces that the caller may read completely: usage covers all groups of a namespace."""
    lines = [] if guard is None else [await _line(desk, guard, name) for name in await _visible(desk, guard)]
    quotas = {} if guard is None else guard.authenticator.policy.document.quotas
    return {
        "lines": [line for line in lines if line.uses],
        "unlimited": [line.name for line in lines if not line.uses],
        "has_quotas": bool(quotas),
        "columns": (*_ALWAYS, *dict.fromkeys(u.name for line in lines for u in line.uses if u.name not in _ALWAYS)),
    }


async def _visible(desk: Desk, guard: Guard) -> list[str]:
    named = [name for name in guard.authenticator.policy.document.quotas if name != ANY]
    known = sorted({*await desk.namespaces(), *named})[:_NAMESPACES]
    visible: list[str] = []
    refused: RejectedRequest | None = None
    # A caller without any permission gets an error, also while there are no groups yet.
    for name in known or ["default"]:
        try:
            guard.admit_to(SEE_QUOTA, name, ANY)
        except RejectedRequest as rejected:
            refused = rejected
        else:
            visible.append(name)
    if refused is not None and not visible:
        raise refused
    return visible


async def _line(desk: Desk, guard: Guard, namespace: str) -> NamespaceUse:
    quotas = guard.authenticator.policy.document.quotas
    quota = quota_of(quotas, namespace)
    if quota is None:
        return NamespaceUse(namespace, is_own=False, uses=())
    stored = Stored()
    if quota.counts_stored:
        stored = await desk.stored(namespace, counts_bytes=quota.max_stored_bytes is not None)
    return NamespaceUse(namespace, namespace in quotas, tuple(_uses(quota, stored, guard.meters.taken(namespace))))


def _uses(quota: Quota, stored: Stored, taken: Taken) -> Iterator[Use]:
    if quota.max_groups is not None:
        yield Use("groups", len(stored.groups), quota.max_groups)
    if quota.max_members is not None:
        yield Use("members", stored.members, quota.max_members)
    if quota.max_parked is not None:
        yield Use("parked", taken.parked, quota.max_parked)
    if quota.max_topics is not None:
        yield Use("topics", len(stored.topics), quota.max_topics)
    if quota.max_stored_bytes is not None:
        yield Use("stored", stored.bytes, quota.max_stored_bytes)
    if quota.requests_per_s is not None:
        yield Use("requests", taken.requests, quota.requests_per_s * BURST_S, f"{quota.requests_per_s:,} a second")
    if quota.bytes_per_s is not None:
        yield Use("bytes", taken.bytes, quota.bytes_per_s * BURST_S, f"{quota.bytes_per_s:,} a second")
