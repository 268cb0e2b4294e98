"""The journal for people: one line per event, with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

Event = Mapping[str, Any]


def timeline_line(event: Event) -> str:
    """Format `12:00:00.123  generation 3  event and reason`."""
    return f"{clock_time(event['at_ms'])}  generation {event['generation_id']:<3}  {what_happened(event)}"


def what_happened(event: Event) -> str:
    """Describe an event in words. Kinds that this release does not know are printed unchanged."""
    payload = event["payload"]
    sentence = _sentence(event["kind"], payload)
    because = why(event["reason"], payload.get("by", ""))
    return f"{sentence}: {because}" if because else sentence


def why(reason: str, by: str) -> str:
    """Format a reason, with the member that caused it if the reason does not name it."""
    if not by or by in reason:
        return reason
    return f"{reason} (because of {by})" if reason else f"because of {by}"


def how_it_ended(events: Iterable[Event]) -> str:
    """Describe when and why a deleted group lost its last member and was deleted; empty if `events` lack its end."""
    last = {event["kind"]: event for event in events}
    deleted, emptied = last.get("group_deleted"), last.get("group_emptied")
    if deleted is None:
        return ""
    end = f"deleted {_local(deleted['at_ms'])[:19]}: {deleted['reason']}"
    if emptied is None:
        return end
    because = why(emptied["reason"], emptied["payload"].get("by", ""))
    return f"no members since {_local(emptied['at_ms'])[:19]}: {because}; {end}"


def clock_time(at_ms: int) -> str:
    """Format the local time of day, to the millisecond."""
    return _local(at_ms)[11:23]


def _local(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def _sentence(kind: str, payload: Mapping[str, Any]) -> str:
    match kind:
        case "rebalance_started":
            return "rebalance"
        case "member_joined":
            return f"{payload['member']['member_id']} joins"
        case "member_updated":
            return f"{payload['member']['member_id']} joins again with other metadata"
        case "member_left" | "member_expired" | "member_removed":
            return f"{payload['member_id']} {kind.removeprefix('member_')}"
        case "member_fenced":
            return f"{payload['member_id']} fenced, {payload['new_member_id']} is {payload['group_instance_id']} now"
        case "generation_completed":
            number = len(payload["member_ids"])
            agree = "1 member agrees" if number == 1 else f"{number} members agree"
            return f"{agree}, {payload['leader_id']} leads by {payload['protocol_name']!r}"
        case "leader_changed":
            former, leader = payload["former_leader_id"], payload["leader_id"]
            return f"the lead passes from {former} to {leader}" if former else f"{leader} leads now"
        case "assignment_synced":
            how = "assigns anew without a rebalance" if payload["resync"] else "has assigned"
            return f"{payload['leader_id']} {how}"
        case "assignment_failed":
            return f"{payload['leader_id']} could not assign"
        case _:
            return _sentence_of_data(kind, payload)


def _units_line(kind: str, payload: Mapping[str, Any]) -> str:
    match kind:
        case "quarantine_changed" if payload["after_falls"]:
            falls, most = payload["after_falls"], payload["max_units"]
            return f"units are quarantined after {falls} falls in a row, at most {most} at once"
        case "quarantine_changed":
            return "no unit is quarantined any more"
        case "units_suspected":
            suspects = ", ".join(f"{unit} ({count})" for unit, count, _at_ms in payload["suspects"])
            return f"suspects, with their falls in a row: {suspects}" if suspects else "no unit is suspected any more"
        case _:
            verb = "quarantined" if kind == "units_quarantined" else "released from quarantine"
            return f"{', '.join(payload['units'])} {verb}"


def _sentence_of_data(kind: str, payload: Mapping[str, Any]) -> str:
    match kind:
        case "offsets_committed":
            offsets = ", ".join(f"{topic}/{number} at {offset}" for topic, number, offset, *_ in payload["offsets"])
            return f"{payload['member_id'] or 'an administrator'} commits {offsets}"
        case "offsets_deleted":
            return "offsets deleted of " + ", ".join(f"{topic}/{number}" for topic, number in payload["partitions"])
        case "request_fenced":
            request = f"{payload['operation']} of {payload['member_id']} with generation"
            return f"{request} {payload['request_generation_id']} refused, {payload['error']}"
        case "generation_raised":
            return f"the generation is raised from {payload['former_generation_id']} to {payload['generation_id']}"
        case "group_frozen":
            until = datetime.fromtimestamp(payload["until_ms"] / 1000, UTC)
            return f"the group is frozen until {until:%Y-%m-%d %H:%M:%S} UTC"
        case "group_unfrozen":
            return "the group is not frozen any more"
        case "leave_granted":
            return f"{payload['member_id']} may leave, as one of at most {payload['max_leaving']} at once"
        case "quarantine_changed" | "units_suspected" | "units_quarantined" | "units_released":
            return _units_line(kind, payload)
        case "group_emptied":
            return "the group is empty"
        case "group_deleted":
            return "the group is deleted"
        case "administered":
            return f"{payload['operation']} by {payload['actor']}"
        case "session_stats":
            return f"statistics of heartbeats, members: {len(payload['members'])}"
        case "topic_changed":
            partitions = payload["partitions"]
            return f"topic {payload['topic']} {f'has {partitions} partitions' if partitions else 'is deleted'}"
        case "shard_acquired" | "shard_released":
            return f"{payload['replica_id']} {kind.removeprefix('shard_')} the shard, epoch {payload['epoch']}"
        case _:
            return kind


def printable(text: str) -> str:
    r"""Return the text on one line, with unprintable characters as escapes, such as `\n` or `\x1b`.

    A reason is free text. It must not start a new line or control a terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
