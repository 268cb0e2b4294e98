"""The administrator's side of quarantine: its rule, and the release of units (ADR 81)."""

from __future__ import annotations

from collections.abc import Collection

from rota.group.apply import record
from rota.group.freeze import hold_back
from rota.group.rebalance import start_rebalance
from rota.group.records import QuarantineChanged, UnitsReleased
from rota.group.result import Result, TimerKind
from rota.group.state import COMPLETING_REBALANCE, STABLE, Group
from rota.group.trigger import Trigger
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import QuarantineGroup, QuarantineReply
from rota.types import has_units


def quarantine_group(result: Result, group: Group, request: QuarantineGroup, call: int, limits: Limits) -> None:
    """Change the rule, and release units."""
    refusal = _refusal(group, request)
    if refusal:
        result.reply(call, QuarantineReply(ErrorCode.INVALID_REQUEST, refusal))
        return
    rule = group.quarantine
    former = (rule.after_falls, rule.max_units, rule.release_after_ms)
    asked = (request.after_falls, request.max_units, request.release_after_ms)
    after_falls, max_units, release_after_ms = (
        now if new is None else new for now, new in zip(former, asked, strict=True)
    )
    if (after_falls, max_units, release_after_ms) != former:
        record(result, group, QuarantineChanged(after_falls, max_units, release_after_ms, request.reason))
    if request.release:
        release_units(result, group, tuple(dict.fromkeys(request.release)), request.reason, limits)
    units = group.quarantine.names
    result.reply(call, QuarantineReply(ErrorCode.NONE, "", after_falls, max_units, release_after_ms, units))


def watch_quarantine(result: Result, group: Group) -> None:
    """Set the timers for the releases of a group that is loaded."""
    for until_ms in sorted({until_ms for _unit, until_ms in group.quarantine.units if until_ms}):
        result.set_timer(TimerKind.RELEASE, group, "", max(until_ms, result.now_ms + 1))


def on_release_timer(result: Result, group: Group, limits: Limits) -> None:
    """The time of some units is over, unless an administrator has released them."""
    due = [unit for unit, until_ms in group.quarantine.units if until_ms and until_ms <= result.now_ms]
    if due:
        release_units(result, group, due, "their time in quarantine is over", limits)


def release_units(result: Result, group: Group, units: Collection[str], reason: str, limits: Limits) -> None:
    """Members may own them again, by a rebalance: nobody else asks for one, if no count of partitions changes."""
    record(result, group, UnitsReleased(tuple(units), reason))
    trigger = Trigger(Cause.UNITS_RELEASED, f"{', '.join(units)} released from quarantine")
    if group.state in (STABLE, COMPLETING_REBALANCE) and not hold_back(result, group, trigger):
        start_rebalance(result, group, limits, trigger)


def _refusal(group: Group, request: QuarantineGroup) -> str:
    if group.settled is None or group.protocol_type is None:
        return "the group has had no generation yet"
    if not has_units(group.protocol_type or ""):
        return f"shares of type {group.protocol_type!r} have no units that could be quarantined"
    unknown = [unit for unit in request.release if unit not in group.quarantine.names]
    return f"{unknown[0]} is not quarantined" if unknown else ""
