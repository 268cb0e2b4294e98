"""Options and output of `rota groups plan`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import typer

from rota.cli.tables import print_table
from rota.core.types.plan import PlannedRebalance
from rota.protocol.messages import TopicPartitions
from rota.server.observability.printable import printable

_MORE = re.compile(r"\+([0-9]{1,9})")
_TOPIC_COUNT = re.compile(r"([^=]+)=([0-9]{1,9})")


def so_many_more(text: str | None) -> int:
    """Parse `+2` as 2, and no text as 0. A number without the sign might be meant as the total."""
    if text is None:
        return 0
    matched = _MORE.fullmatch(text)
    if matched is None:
        why = f"must look like +2, not {text!r}; members that leave are named by --without"
        raise typer.BadParameter(why, param_hint="--members")
    return int(matched[1])


def partition_counts(texts: Iterable[str]) -> dict[str, int]:
    """Parse `orders=12` for each topic."""
    counts = {}
    for text in texts:
        matched = _TOPIC_COUNT.fullmatch(text)
        if matched is None:
            raise typer.BadParameter(f"must look like orders=12, not {text!r}", param_hint="--partitions")
        counts[matched[1]] = int(matched[2])
    return counts


def plan_item(group_id: str, plan: PlannedRebalance) -> dict[str, Any]:
    """Return the plan as JSON, with its group."""
    return {"group_id": group_id, **msgspec.to_builtins(plan)}


def print_plan(group_id: str, plan: PlannedRebalance) -> None:
    """Print the plan for people: its figures, each member before and after, the moved partitions, and its
    assumptions.
    """
    strategies = dict.fromkeys([plan.protocol_name, plan.planned_protocol_name])
    facts = {
        "group": group_id,
        "generation": plan.generation_id,
        "strategy": " -> ".join(strategies),
        "join phases": plan.rounds,
        "moves": f"{plan.moves} partitions; at least {plan.least_moves} for shares of these sizes",
        "imbalance": f"{plan.imbalance_before} -> {plan.imbalance_after}",
        "unowned": _named(plan.unowned),
    }
    print_table([[f"{name}:", value] for name, value in facts.items()])
    print()
    rows = [
        (
            each.member_id,
            each.group_instance_id,
            each.fate,
            _named(each.before),
            _named(each.after),
            _named(each.pauses),
        )
        for each in plan.members
    ]
    print_table(rows, headings=("member", "instance", "fate", "before", "after", "pauses"))
    if plan.moved:
        print()
        moved = [
            (_named([TopicPartitions(each.topic, each.partitions)]), each.from_member_id, each.to_member_id)
            for each in plan.moved
        ]
        print_table(moved, headings=("moves", "from", "to"))
    for note in plan.notes:
        print(f"note: {printable(note)}")


def _named(partitions: Sequence[TopicPartitions]) -> str:
    """Return partitions as `orders/0,1 words/3`."""
    return " ".join(f"{each.topic}/{','.join(map(str, each.partitions))}" for each in partitions)
