"""Pages across groups: groups, topics, members and leaders of a namespace, and a search over all namespaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.messages import DescribedMember, ListedGroup
from rota.server.console.backend import Asked, Backend, Described
from rota.server.console.group import MemberRow, member_row
from rota.server.console.rendering import STATES, query
from rota.server.observability.explanation import mood_of

PAGE = 50
MOST_DESCRIBED = 200
"""Maximum number of groups that one page reads; the page says if there are more."""
MOST_FOUND = 100
_MOST_NAMESPACES = 100


@dataclass(frozen=True, slots=True)
class Found:
    """A group or topic with the searched name, in a namespace."""

    namespace: str
    name: str
    group: ListedGroup | None = None
    """None for a topic."""


async def topics_page(asked: Asked) -> dict[str, Any]:
    """Show the registered topics of a namespace."""
    topics = await asked.backend.list_topics(asked.namespace)
    chosen = [topic for topic in topics if asked.search.lower() in topic.topic.lower()]
    shown, links = asked.page(chosen, PAGE)
    return {"namespace": asked.namespace, "search": asked.search, "topics": shown, "total": len(topics), **links}


async def members_page(asked: Asked) -> dict[str, Any]:
    """Show the members of all groups of a namespace: the groups of each process, and its shares."""
    backend, namespace, search = asked.backend, asked.namespace, asked.search
    listing = await backend.list_groups(namespace)
    occupied = [group.group_id for group in listing.groups if group.members]
    described = await backend.describe_each(namespace, occupied[:MOST_DESCRIBED])
    now_ms = backend.now_ms()
    places = [
        (each.group, member_row(each.group, member, now_ms))
        for each in described.values()
        for member in each.group.members
    ]
    chosen = [(group, row) for group, row in places if _is_like(row.member, search.lower())]
    chosen.sort(key=lambda one: (one[1].member.host, one[1].member.client_id, one[0].group_id))
    shown, links = asked.page(chosen, PAGE)
    return {
        "namespace": namespace,
        "search": search,
        "places": shown,
        **links,
        "total": len(places),
        "unread": max(0, len(occupied) - MOST_DESCRIBED) if listing.whole else None,
        "now_ms": now_ms,
    }


async def leaders_page(asked: Asked) -> dict[str, Any]:
    """Show the elections of a namespace with their leaders, those without a leader first."""
    backend, namespace, search = asked.backend, asked.namespace, asked.search
    listing = await backend.list_groups(namespace)
    elections = [group for group in listing.groups if group.protocol_type == "leader"]
    chosen = [group for group in elections if search.lower() in group.group_id.lower()]
    chosen.sort(key=lambda group: (group.leader_id != "", group.group_id))
    shown, links = asked.page(chosen, PAGE)
    described = await backend.describe_each(namespace, [group.group_id for group in shown])
    return {
        "namespace": namespace,
        "search": search,
        "lines": [(each, _leader(each, backend.now_ms())) for each in described.values()],
        "leaderless": sum(not group.leader_id for group in chosen),
        **links,
        "total": len(elections),
        "whole": listing.whole,
        "now_ms": backend.now_ms(),
    }


async def search_page(asked: Asked) -> dict[str, Any]:
    """Search for groups and topics by a part of their names, in all namespaces that the caller may read."""
    backend, search = asked.backend, asked.search
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


def _is_like(member: DescribedMember, needle: str) -> bool:
    names = (member.member_id, member.client_id, member.host, member.group_instance_id or "")
    return any(needle in name.lower() for name in names)


def _leader(described: Described, now_ms: int) -> MemberRow | None:
    group = described.group
    leader = next((member for member in group.members if member.member_id == group.leader_id), None)
    return None if leader is None else member_row(group, leader, now_ms)


# --- the list of groups: filtered, searched and sorted by the parameters of its URL -----------------

_STATE_ORDER = {"PreparingRebalance": 0, "CompletingRebalance": 1, "Stable": 2, "Empty": 3}
_SORTS: dict[str, Callable[[ListedGroup], Any]] = {
    "group": lambda group: group.group_id,
    "state": lambda group: (_STATE_ORDER.get(group.state, 4), group.group_id),
    "type": lambda group: (group.protocol_type, group.group_id),
    "generation": lambda group: (group.generation_id, group.group_id),
    "members": lambda group: (group.members, group.group_id),
}
_DOWN_FIRST = ("generation", "members")


@dataclass(frozen=True, slots=True)
class View:
    """The parameters of the URL. Invalid ones are ignored, so that they never break a link."""

    namespace: str = "default"
    search: str = ""
    states: tuple[str, ...] = ()
    protocol_type: str = ""
    sort: str = "state"
    descending: bool = False
    page: int = 1

    @classmethod
    def of(cls, asked: Asked) -> View:
        parameters = asked.parameters
        sort = parameters.get("sort", "")
        return cls(
            asked.namespace,
            asked.search,
            tuple(state for state in STATES if state in parameters.getlist("state")),
            parameters.get("type", "")[:249],
            sort.removeprefix("-") if sort.removeprefix("-") in _SORTS else "state",
            sort.startswith("-"),
        )

    def url(self, **changes: Any) -> str:
        """Return the query of the list with some parameters changed; a changed filter starts at the first page."""
        view = replace(self, **{"page": 1, **changes})
        sort = f"{'-' if view.descending else ''}{view.sort}"
        shown = query(
            namespace=view.namespace if view.namespace != "default" else None,
            q=view.search,
            state=list(view.states),
            type=view.protocol_type,
            sort=sort if sort != "state" else None,
            page=view.page if view.page > 1 else None,
        )
        return shown or "?"

    def toggled(self, state: str) -> str:
        states = {*self.states} ^ {state}
        return self.url(states=tuple(one for one in STATES if one in states))

    def sorted_by(self, column: str) -> str:
        """Return the URL that sorts by a column, reversed if it is already sorted by it."""
        descending = not self.descending if self.sort == column else column in _DOWN_FIRST
        return self.url(sort=column, descending=descending)

    def direction(self, column: str) -> str:
        """Return the `aria-sort` of a column."""
        return ("descending" if self.descending else "ascending") if self.sort == column else "none"

    def chosen(self, groups: Sequence[ListedGroup]) -> list[ListedGroup]:
        needle = self.search.lower()
        found = [
            group
            for group in groups
            if needle in group.group_id.lower()
            and (not self.states or group.state in self.states)
            and (not self.protocol_type or group.protocol_type == self.protocol_type)
        ]
        return sorted(found, key=_SORTS[self.sort], reverse=self.descending)


async def list_page(asked: Asked) -> dict[str, Any]:
    view = View.of(asked)
    listing = await asked.backend.list_groups(view.namespace)
    shown, links = asked.page(view.chosen(listing.groups), PAGE)
    return {
        **links,
        "view": replace(view, page=links["page"]),
        "lines": [(group, mood_of(group)) for group in shown],
        "total": len(listing.groups),
        "whole": listing.whole,
        "by_state": Counter(group.state for group in listing.groups),
        "types": sorted({group.protocol_type for group in listing.groups if group.protocol_type}),
        "states": STATES,
        "now_ms": asked.backend.now_ms(),
    }
