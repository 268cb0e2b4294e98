"""Pages across groups: topics, members and leaders of a namespace, and a search over all namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_namespace
from rota.protocol.messages import ListedGroup
from rota.server.console.backend import Backend, Described
from rota.server.console.group import MemberRow, member_row
from rota.server.console.rendering import page_number

PAGE = 50
MOST_DESCRIBED = 200
"""Maximum number of groups that one page reads; the page says if there are more."""
MOST_FOUND = 100
_MOST_NAMESPACES = 100


@dataclass(frozen=True, slots=True)
class Place:
    """A member in its group."""

    described: Described
    row: MemberRow


@dataclass(frozen=True, slots=True)
class Found:
    """A group or topic with the searched name, in a namespace."""

    namespace: str
    name: str
    group: ListedGroup | None = None
    """None for a topic."""


def namespace_of(parameters: QueryParams) -> str:
    namespace = parameters.get("namespace") or "default"
    check_namespace(namespace)
    return namespace


def _needle(parameters: QueryParams) -> str:
    return parameters.get("q", "").strip()[:249]


async def topics_page(backend: Backend, parameters: QueryParams) -> dict[str, Any]:
    """Show the registered topics of a namespace."""
    namespace, search = namespace_of(parameters), _needle(parameters)
    topics = await backend.list_topics(namespace)
    chosen = [topic for topic in topics if search.lower() in topic.topic.lower()]
    page, pages = page_number(parameters, len(chosen), PAGE)
    return {
        "namespace": namespace,
        "search": search,
        "topics": chosen[(page - 1) * PAGE : page * PAGE],
        "found": len(chosen),
        "total": len(topics),
        "page": page,
        "pages": pages,
    }


async def members_page(backend: Backend, parameters: QueryParams) -> dict[str, Any]:
    """Show the members of all groups of a namespace: the groups of each process, and its shares."""
    namespace, search = namespace_of(parameters), _needle(parameters)
    listing = await backend.list_groups(namespace)
    occupied = [group.group_id for group in listing.groups if group.members]
    described = await backend.describe_each(namespace, occupied[:MOST_DESCRIBED])
    places = [place for each in described.values() for place in _places(each, backend.now_ms())]
    chosen = sorted((place for place in places if _is_like(place, search.lower())), key=_by_process)
    page, pages = page_number(parameters, len(chosen), PAGE)
    return {
        "namespace": namespace,
        "search": search,
        "places": chosen[(page - 1) * PAGE : page * PAGE],
        "found": len(chosen),
        "total": len(places),
        "unread": max(0, len(occupied) - MOST_DESCRIBED) if listing.whole else None,
        "page": page,
        "pages": pages,
        "now_ms": backend.now_ms(),
    }


async def leaders_page(backend: Backend, parameters: QueryParams) -> dict[str, Any]:
    """Show the elections of a namespace with their leaders, those without a leader first."""
    namespace, search = namespace_of(parameters), _needle(parameters)
    listing = await backend.list_groups(namespace)
    elections = [group for group in listing.groups if group.protocol_type == "leader"]
    chosen = [group for group in elections if search.lower() in group.group_id.lower()]
    chosen.sort(key=lambda group: (group.leader_id != "", group.group_id))
    page, pages = page_number(parameters, len(chosen), PAGE)
    shown = [group.group_id for group in chosen[(page - 1) * PAGE : page * PAGE]]
    described = await backend.describe_each(namespace, shown)
    return {
        "namespace": namespace,
        "search": search,
        "lines": [(each, _leader(each, backend.now_ms())) for each in described.values()],
        "leaderless": sum(not group.leader_id for group in chosen),
        "found": len(chosen),
        "total": len(elections),
        "whole": listing.whole,
        "page": page,
        "pages": pages,
        "now_ms": backend.now_ms(),
    }


async def search_page(backend: Backend, parameters: QueryParams) -> dict[str, Any]:
    """Search for groups and topics by a part of their names, in all namespaces that the caller may read."""
    search = _needle(parameters)
    found: list[Found] = []
    refused: RejectedRequest | None = None
    has_read = False
    # A caller without any permission gets an error, even for an empty search.
    for namespace in (await backend.namespaces())[:_MOST_NAMESPACES] or ["default"]:
        try:
            found += await _found(backend, namespace, search.lower())
        except RejectedRequest as rejected:
            refused = rejected
        else:
            has_read = True
    if refused is not None and not has_read:
        raise refused
    found.sort(key=lambda each: (each.name.lower() != search.lower(), each.name, each.namespace))
    return {"search": search, "results": found[:MOST_FOUND], "more": max(0, len(found) - MOST_FOUND)}


async def _found(backend: Backend, namespace: str, needle: str) -> list[Found]:
    groups = (await backend.list_groups(namespace)).groups
    if not needle:
        return []
    found = [Found(namespace, group.group_id, group) for group in groups if needle in group.group_id.lower()]
    topics = await backend.list_topics(namespace)
    return found + [Found(namespace, topic.topic) for topic in topics if needle in topic.topic.lower()]


def _places(described: Described, now_ms: int) -> Iterator[Place]:
    for member in described.group.members:
        yield Place(described, member_row(described.group, member, now_ms))


def _is_like(place: Place, needle: str) -> bool:
    member = place.row.member
    names = (member.member_id, member.client_id, member.host, member.group_instance_id or "")
    return any(needle in name.lower() for name in names)


def _by_process(place: Place) -> tuple[str, str, str]:
    member = place.row.member
    return member.host, member.client_id, place.described.group.group_id


def _leader(described: Described, now_ms: int) -> MemberRow | None:
    group = described.group
    leader = next((member for member in group.members if member.member_id == group.leader_id), None)
    return None if leader is None else member_row(group, leader, now_ms)
