"""The texts of `INCONSISTENT_GROUP_PROTOCOL`: what the group agreed on, and what the member offers."""

from __future__ import annotations

from collections.abc import Sequence

from rota.group.state import EMPTY, Group

_MOST_NAMES = 5
_MOST_CHARS = 80
_USED_BY = {
    "consumer": "consumers and worker pools",
    "leader": "elections",
    "worker": "Connect workers",
    "permits": "permits and locks",
}
"""The kinds of the SDK, by the protocol type of their groups."""


def join_mismatch(group: Group, protocol_type: str, protocol_names: Sequence[str]) -> str:
    """Say why a join with these protocols cannot be accepted; the group does not support them."""
    if group.state is EMPTY or not protocol_type or not protocol_names:
        return "a join needs a protocol type and at least one protocol"
    offered = f"this member offers {_names(protocol_names)}"
    if group.protocol_type != protocol_type:
        return (
            f"group {_quoted(group.group_id)} has {_type(group.protocol_type or '')} and {_names(_common(group))};"
            f" {offered} of {_type(protocol_type)}; use another group name"
        )
    return (
        f"group {_quoted(group.group_id)} has {_type(protocol_type)}, and all its members list"
        f" {_names(_common(group))}; {offered}; list a protocol that all members list"
    )


def listed_twice(protocol_names: Sequence[str]) -> str:
    """Say which protocol a join lists more than once: it would count as that of several members."""
    twice = next(name for place, name in enumerate(protocol_names) if name in protocol_names[:place])
    return f"this member lists the protocol {_quoted(twice)} more than once"


def sync_mismatch(group: Group, protocol_type: str | None, protocol_name: str | None) -> str:
    """Say what differs between a sync and the group, which has agreed on another protocol."""
    differs = "protocol type" if protocol_type not in (None, group.protocol_type) else "protocol"
    of_group, of_member = (
        (group.protocol_type, protocol_type) if differs == "protocol type" else (group.protocol_name, protocol_name)
    )
    return (
        f"group {_quoted(group.group_id)} has the {differs} {_quoted(of_group or '')}, this member's sync names"
        f" {_quoted(of_member or '')}"
    )


def _common(group: Group) -> list[str]:
    """The protocols that all members list."""
    return [name for name, count in group.support.items() if count == len(group.members)]


def _type(protocol_type: str) -> str:
    used_by = _USED_BY.get(protocol_type)
    return f"the protocol type {_quoted(protocol_type)}" + (f" ({used_by})" if used_by else "")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(_quoted(name) for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"the protocol{'s' if len(names) > 1 else ''} {shown}{more}"


def _quoted(name: str) -> str:
    """Text that a caller chose, in quotes and not longer than a message can bear."""
    return repr(name if len(name) <= _MOST_CHARS else f"{name[:_MOST_CHARS]}…")
