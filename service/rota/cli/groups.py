"""`rota groups`: the groups, their members, and the reasons of their rebalances."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from rota.cli import group_actions as actions
from rota.cli import group_events as events
from rota.cli.completion import complete_member
from rota.cli.exits import CommandFailed, exit_for
from rota.cli.lists import AllNamespaces, Limit, Listing, Sort, Watch
from rota.cli.options import Group, OutputFormat, at_server
from rota.cli.output import Output, print_item, print_table
from rota.cli.times import ago
from rota.protocol.errors import RejectedRequest
from rota.protocol.fencing_token import takeover_of
from rota.protocol.wording import count
from rota.server.observability.timeline import printable
from rota.server.observability.timeline import why as because

if TYPE_CHECKING:
    from rota.cli.calls import Server
    from rota.core.types.plan import PlannedMove, PlannedRebalance
    from rota.protocol.messages import DescribedMember, DescribeReply, TopicPartitions

_BY_TOPIC = ("topics", "run", "partitions")
"""The fields of a decoded assignment that hold its partitions by topic, or its tasks by connector."""
_MORE = re.compile(r"\+([0-9]{1,9})")
_TOPIC_COUNT = re.compile(r"([^=]+)=([0-9]{1,9})")


def list_groups(
    server: Server,
    state: Annotated[list[str] | None, typer.Option("--state", help="Only groups in this state; repeatable.")] = None,
    protocol_type: Annotated[
        list[str] | None, typer.Option("--protocol-type", help="Only groups of this type; repeatable.")
    ] = None,
    topic: Annotated[str, typer.Option("--topic", help="Only groups with a subscriber of this topic.")] = "",
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = False,
    all_namespaces: AllNamespaces = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """List the groups of a namespace, or of all."""
    from rota.protocol.messages import ListGroups, ListReply

    columns = ("group_id", "state", "protocol_type", "generation_id", "members")
    listing = Listing(columns, "group_id", sort, limit, watch, all_namespaces=all_namespaces)

    def read(namespace: str) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = []
        chosen = ListGroups(namespace, tuple(state or ()), protocol_types=tuple(protocol_type or ()), topic=topic)
        for page in server.pages(chosen, ListReply):
            groups += [to_builtins(group) for group in page.groups]
            if listing.is_enough(groups):
                break
        return groups

    listing.print(lambda: listing.gathered(server, read), output)


def describe(server: Server, group: Group, output: OutputFormat = Output.TABLE) -> None:
    """Show a group: its state, generation and leader, its members with their assignments, and its last rebalance."""
    from rota.protocol.wire.replies import encode_reply

    described = events.described_or_deleted(server, group)
    if output is Output.TABLE:
        _print_description(described)
    else:
        print_item(encode_reply(described), output, name="group_id")


def why(server: Server, group: Group, output: OutputFormat = Output.TABLE) -> None:
    """Explain the state of a group: the members that it waits for and until when, its last rebalance, its leader."""
    from rota.server.observability.explanation import explain

    described = events.described_or_deleted(server, group)
    explanation = explain(described, int(time.time() * 1_000), events.recent_events(server, group))
    if output is Output.TABLE:
        print(printable(explanation.headline))
        print_table([[f"{point.about}:", point.text] for point in explanation.points])
    else:
        print_item({"group_id": group, **asdict(explanation)}, output, name="group_id")


def plan(
    server: Server,
    group: Group,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="MEMBER",
            help="This member or instance leaves; repeatable.",
            autocompletion=complete_member,
        ),
    ] = None,
    members: Annotated[str, typer.Option("--members", metavar="+N", help="Number of members that join.")] = "+0",
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partitions", metavar="TOPIC=N", help="The topic has this number of partitions; repeatable."),
    ] = None,
    strategy: Annotated[str, typer.Option("--strategy", help="A strategy to use instead of the group's.")] = "",
    output: OutputFormat = Output.TABLE,
) -> None:
    """Show what a rebalance would move and pause, with other members, partitions or another strategy. Changes nothing.

    Without a hypothesis, show what `rota groups rebalance` would do now.
    """
    from rota.core.types import TopicFacts
    from rota.core.types.plan import Hypothesis, plan_rebalance
    from rota.protocol.messages import DescribeGroup, DescribeReply

    if (more := _MORE.fullmatch(members)) is None:  # A number without the sign might be meant as the total.
        text = f"must look like +2, not {members!r}; members that leave are named by --without"
        raise typer.BadParameter(text, param_hint="--members")
    counts = {}
    for each in partitions or ():
        if (matched := _TOPIC_COUNT.fullmatch(each)) is None:
            raise typer.BadParameter(f"must look like orders=12, not {each!r}", param_hint="--partitions")
        counts[matched[1]] = int(matched[2])
    described = server.call(DescribeGroup(server.namespace, group), DescribeReply)
    topics = {one.topic: TopicFacts(one.partitions, dict(one.attributes)) for one in server.topics(server.namespace)}
    try:
        planned = plan_rebalance(described, topics, Hypothesis(without or (), int(more[1]), counts, strategy))
    except RejectedRequest as rejected:
        raise CommandFailed(f"{rejected.detail} ({rejected.code})", exit_for(rejected.code)) from None
    if output is Output.TABLE:
        _print_plan(group, planned)
    else:
        print_item({"group_id": group, **to_builtins(planned)}, output, name="group_id")


app = typer.Typer(no_args_is_help=True, help="Groups: their members, assignments and rebalances.")
_COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_groups,
    "describe": describe,
    "why": why,
    "watch": events.watch,
    "history": events.history,
    "delete": actions.delete,
    "rebalance": actions.rebalance,
    "freeze": actions.freeze,
    "unfreeze": actions.unfreeze,
    "quarantine": actions.quarantine,
    "release": actions.release,
    "drain": actions.drain,
    "plan": plan,
    "remove-member": actions.remove_member,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(at_server(_command))


def _print_description(group: DescribeReply) -> None:
    name = group.generation_protocol_name or group.protocol_name
    facts = {
        "group": group.group_id,
        "state": f"{group.state}, since {ago(group.state_since_ms)}",
        "generation": group.generation_id,
        "protocol": f"{name} of type {group.protocol_type}" if name else None,
        "leader": group.leader_id,
        "last rebalance": because(group.rebalance_reason, group.rebalance_by),
        "cause": group.rebalance_cause,
        "pending ids": group.pending_members or None,
        "takeovers": max((takeover_of(member.fencing_token) for member in group.members), default=0) or None,
    }
    print_table([[f"{name}:", value] for name, value in facts.items() if value not in (None, "")])
    if group.members:
        print()
        rows = [(m.member_id, m.group_instance_id, m.host, m.fencing_token, _held(m)) for m in group.members]
        print_table(rows, headings=("member", "instance", "host", "token", "holds"))


def _held(member: DescribedMember) -> str:
    """Return an assignment for people: decoded by its protocol type, otherwise its size."""
    decoded = member.assignment_decoded
    if decoded is None:
        return f"a share of {count(len(member.assignment), 'byte')}" if member.assignment else "-"
    if "leader_id" in decoded:
        return "the leadership" if decoded["leader_id"] == member.member_id else "-"
    first = next((name for name in _BY_TOPIC if isinstance(decoded.get(name), dict)), "")
    rest = [f"{name}={_shown(value)}" for name, value in decoded.items() if name != first and value]
    return printable(" ".join([_partitions(decoded[first]), *rest] if first else rest)) or "-"


def _partitions(by_topic: dict[str, Any]) -> str:
    """Return `orders/0,1 words/3`; a value that is not a list of numbers stays unchanged."""
    names = sorted(topic for topic in by_topic if by_topic[topic])
    return " ".join(f"{topic}/{_numbers(by_topic[topic])}" for topic in names) or "-"


def _numbers(value: Any) -> str:
    are_numbers = isinstance(value, list) and all(type(each) is int for each in value)
    return ",".join(map(str, sorted(value))) if are_numbers else _shown(value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _print_plan(group_id: str, plan: PlannedRebalance) -> None:
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
        "unowned": _units(plan.unowned),
    }
    print_table([[f"{name}:", value] for name, value in facts.items()])
    print()
    rows = [
        (each.member_id, each.group_instance_id, each.fate, *map(_units, (each.before, each.after, each.pauses)))
        for each in plan.members
    ]
    print_table(rows, headings=("member", "instance", "fate", "before", "after", "pauses"))
    if plan.moved:
        print()
        moved = [(_units([each]), each.from_member_id, each.to_member_id) for each in plan.moved]
        print_table(moved, headings=("moves", "from", "to"))
    for note in plan.notes:
        print(f"note: {printable(note)}")


def _units(partitions: Sequence[TopicPartitions | PlannedMove]) -> str:
    """Return partitions as `orders/0,1 words/3`."""
    return " ".join(f"{each.topic}/{','.join(map(str, each.partitions))}" for each in partitions)
