"""The list of a namespace's groups, filtered, searched and sorted by the parameters of its URL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import QueryParams

from rota.protocol.ids import check_namespace
from rota.protocol.messages import ListedGroup
from rota.server.console.backend import Backend
from rota.server.console.rendering import STATES, query
from rota.server.observability.explanation import mood_of

PAGE = 50
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
    def of(cls, parameters: QueryParams) -> View:
        sort = parameters.get("sort", "")
        page = parameters.get("page", "")
        namespace = parameters.get("namespace") or "default"
        check_namespace(namespace)
        return cls(
            namespace,
            parameters.get("q", "").strip()[:249],
            tuple(state for state in STATES if state in parameters.getlist("state")),
            parameters.get("type", "")[:249],
            sort.removeprefix("-") if sort.removeprefix("-") in _SORTS else "state",
            sort.startswith("-"),
            max(1, int(page)) if page.isdecimal() and len(page) < 7 else 1,
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


async def list_page(backend: Backend, parameters: QueryParams) -> dict[str, Any]:
    view = View.of(parameters)
    listing = await backend.list_groups(view.namespace)
    chosen = view.chosen(listing.groups)
    pages = max(1, -(-len(chosen) // PAGE))
    view = replace(view, page=min(view.page, pages))
    shown = chosen[(view.page - 1) * PAGE : view.page * PAGE]
    return {
        "view": view,
        "lines": [(group, mood_of(group)) for group in shown],
        "found": len(chosen),
        "total": len(listing.groups),
        "whole": listing.whole,
        "pages": pages,
        "by_state": Counter(group.state for group in listing.groups),
        "types": sorted({group.protocol_type for group in listing.groups if group.protocol_type}),
        "states": STATES,
        "now_ms": backend.now_ms(),
    }
