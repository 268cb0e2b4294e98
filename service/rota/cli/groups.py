"""`rota groups`: the groups, their members, and the reasons of their rebalances."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from rota.cli.completion import complete_member, complete_member_id
from rota.cli.consent import Yes, confirm
from rota.cli.exits import CommandFailed, Exit, exit_for
from rota.cli.lists import AllNamespaces, Limit, Listing, Sort, Watch
from rota.cli.options import Group, Member, Namespace, OutputFormat, Url, a_number, shared
from rota.cli.output import Output, as_line, print_item, print_notice
from rota.cli.tables import print_table
from rota.cli.times import ago, milliseconds, since_ms, until
from rota.protocol.errors import RejectedRequest
from rota.protocol.fencing_token import takeover_of
from rota.protocol.ids import check_group_id
from rota.server.observability.printable import printable
from rota.server.observability.timeline import timeline_line, why

if TYPE_CHECKING:
    from rota.protocol.messages import DescribedMember, DescribeReply

_BY_TOPIC = ("topics", "run", "partitions")
"""The fields of a decoded assignment that hold its partitions by topic, or its tasks by connector."""

Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="KIND", help="Only events of this kind, such as rebalance_started; repeatable."),
]

app = typer.Typer(no_args_is_help=True, help="Groups: their members, assignments and rebalances.")


@app.command("list")
def list_groups(
    context: typer.Context,
    state: Annotated[list[str] | None, typer.Option("--state", help="Only groups in this state; repeatable.")] = None,
    protocol_type: Annotated[
        list[str] | None, typer.Option("--protocol-type", help="Only groups of this type; repeatable.")
    ] = None,
    topic: Annotated[str, typer.Option("--topic", help="Only groups with a subscriber of this topic.")] = "",
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = False,
    all_namespaces: AllNamespaces = False,
    url: Url = None,
    namespace: Namespace = None,
    output: OutputFormat = None,
) -> None:
    """List the groups of a namespace, or of all."""
    from rota.cli.calls import Server
    from rota.protocol.messages import ListGroups, ListReply

    options = shared(context, url, namespace, output)
    columns = ("group_id", "state", "protocol_type", "generation_id", "members")
    listing = Listing(columns, "group_id", sort, limit, watch, all_namespaces=all_namespaces)
    with Server(options) as server:

        def read(of_namespace: str) -> list[dict[str, Any]]:
            groups: list[dict[str, Any]] = []
            after: str | None = ""
            types = tuple(protocol_type or ())
            while after is not None and not listing.is_enough(groups):
                chosen = ListGroups(of_namespace, tuple(state or ()), protocol_types=types, after=after, topic=topic)
                page = server.call(chosen, ListReply)
                groups += [to_builtins(group) for group in page.groups]
                after = page.next_after
            return groups

        listing.print(lambda: listing.gathered(server, read), options.output)


@app.command("describe")
def describe_group(
    context: typer.Context, group: Group, url: Url = None, namespace: Namespace = None, output: OutputFormat = None
) -> None:
    """Show a group: its state, generation and leader, its members with their assignments, and its last rebalance."""
    from rota.cli.calls import Server
    from rota.cli.history import described_or_deleted
    from rota.protocol.wire.replies import encode_reply

    options = shared(context, url, namespace, output)
    with Server(options) as server:
        described = described_or_deleted(server, group)
    if options.output is Output.TABLE:
        _print_description(described)
    else:
        print_item(encode_reply(described), options.output, name="group_id")


@app.command("why")
def why_group(
    context: typer.Context, group: Group, url: Url = None, namespace: Namespace = None, output: OutputFormat = None
) -> None:
    """Explain the state of a group: the members that it waits for and until when, its last rebalance, its leader."""
    from rota.cli.calls import Server
    from rota.cli.history import described_or_deleted, recent_events
    from rota.server.observability.explanation import explain

    options = shared(context, url, namespace, output)
    with Server(options) as server:
        described = described_or_deleted(server, group)
        explanation = explain(described, int(time.time() * 1_000), recent_events(server, group))
    if options.output is Output.TABLE:
        print(printable(explanation.headline))
        print_table([[f"{point.about}:", point.text] for point in explanation.points])
    else:
        print_item({"group_id": group, **asdict(explanation)}, options.output, name="group_id")


@app.command("watch")
def watch_group(
    context: typer.Context,
    group: Group,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="REVISION",
            help="Start after this revision; 0: with the first event ever; `earliest`: with the first remaining event.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this number of events.")] = None,
    kind: Kinds = None,
    commits: Annotated[bool, typer.Option(help="Show commits of offsets, too.")] = True,
    url: Url = None,
    namespace: Namespace = None,
    output: OutputFormat = None,
) -> None:
    """Follow a group live: every event with its reason, one per line.

    At a terminal the lines are text, otherwise each is a JSON object; -o chooses table or ndjson.
    Resumes without a gap when the server restarts.
    """
    from rota.cli.calls import Server
    from rota.cli.watch import group_events

    beginning = _beginning(after)
    options = shared(context, url, namespace, output)
    is_table = options.chosen is Output.TABLE if options.chosen else sys.stdout.isatty()
    is_shown = _filter(kind, commits=commits)
    with Server(options) as server:
        for event in islice(filter(is_shown, group_events(server, group, beginning)), count):
            _print_event(event, as_text=is_table)


@app.command("history")
def group_history(
    context: typer.Context,
    group: Group,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only events since then: 90s, 15m, 12h, 30d ago, or 2026-11-24T07:00.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of latest events.")] = 50,
    kind: Kinds = None,
    commits: Annotated[bool, typer.Option(help="Show commits of offsets, too.")] = False,
    url: Url = None,
    namespace: Namespace = None,
    output: OutputFormat = None,
) -> None:
    """Show the latest events of a group, the oldest first, and end. Takes the right to read the journal.

    `rota groups watch` follows a group live, and needs only the right to describe it.
    """
    from rota.cli.calls import Server
    from rota.cli.history import past_events

    options = shared(context, url, namespace, output)
    is_shown, not_before_ms = _filter(kind, commits=commits), since_ms(since)
    with Server(options) as server:
        events = past_events(server, group, is_shown, limit=limit, since_ms=not_before_ms)
    match options.output:
        case Output.JSON:
            print(json.dumps(events, indent=2))
        case Output.TABLE | Output.NDJSON as chosen:
            for event in events:
                _print_event(event, as_text=chosen is Output.TABLE)
        case Output.NAME:
            for event in events:
                print(event["revision"])


def _filter(kinds: list[str] | None, *, commits: bool) -> Callable[[dict[str, Any]], bool]:
    """Return the filter that the options request. Kinds that are named are shown, whatever `--commits` says."""
    from rota.core.group.records import RECORD_KINDS
    from rota.protocol.suggestions import unknown

    if wrong := [kind for kind in kinds or () if kind not in RECORD_KINDS]:
        raise CommandFailed(unknown("kind", wrong[0], RECORD_KINDS), Exit.USAGE)
    if kinds:
        return lambda event: event["kind"] in kinds
    return lambda event: commits or event["kind"] != "offsets_committed"


def _print_event(event: dict[str, Any], *, as_text: bool) -> None:
    print(printable(timeline_line(event)) if as_text else as_line(event), flush=True)


def _beginning(after: str | None) -> int | str | None:
    from rota.cli.watch import EARLIEST

    if after is None or after == EARLIEST:
        return after
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise typer.BadParameter("must be a revision (0 or more), or `earliest`", param_hint="--after")
    return int(after)


@app.command("delete")
def delete_group(
    context: typer.Context,
    group: Group,
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Delete a group that has no members, and its offsets. If it is created again, its generations continue."""
    from rota.cli.calls import Server
    from rota.protocol.messages import DeleteGroup, DeleteGroupReply

    with Server(shared(context, url, namespace)) as server:
        check_group_id(group)
        confirm(f"Delete group {group} of namespace {server.namespace} and its offsets?", yes=yes)
        server.call(DeleteGroup(server.namespace, group, reason), DeleteGroupReply)
    print_notice(f"group {group} is deleted")


@app.command("rebalance")
def rebalance_group(
    context: typer.Context,
    group: Group,
    step_down: Annotated[bool, typer.Option("--step-down", help="Let another member lead, if there is one.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Start a rebalance of a group: no member is removed, and all members are notified at once."""
    from rota.cli.calls import Server
    from rota.protocol.messages import RebalanceGroup, RebalanceReply

    with Server(shared(context, url, namespace)) as server:
        reply = server.call(RebalanceGroup(server.namespace, group, reason, step_down), RebalanceReply)
    print_notice(f"generation {reply.generation_id} of {group} ends")


@app.command("freeze")
def freeze_group(
    context: typer.Context,
    group: Group,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="Such as 90s, 20m or 2h, from now on.")],
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Postpone rebalances that can wait: new members, changes of topics, and candidates of a higher priority.

    Members that leave or expire still cause one.
    """
    from rota.cli.calls import Server
    from rota.protocol.messages import FreezeGroup, FreezeReply

    with Server(shared(context, url, namespace)) as server:
        reply = server.call(FreezeGroup(server.namespace, group, milliseconds(for_), reason), FreezeReply)
    print_notice(f"group {group} is frozen; the freeze ends {until(reply.frozen_until_ms or 0)}")


@app.command("unfreeze")
def unfreeze_group(
    context: typer.Context,
    group: Group,
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """End a freeze early: postponed rebalances start."""
    from rota.cli.calls import Server
    from rota.protocol.messages import FreezeGroup, FreezeReply

    with Server(shared(context, url, namespace)) as server:
        server.call(FreezeGroup(server.namespace, group, 0, reason), FreezeReply)
    print_notice(f"group {group} is not frozen")


@app.command("quarantine")
def quarantine_units(
    context: typer.Context,
    group: Group,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, metavar="N", help="After N failures of its holders in a row; 0 ends the rule."),
    ] = None,
    max_units: Annotated[int | None, typer.Option("--max-units", min=1, help="Maximum number of units.")] = None,
    release_after: Annotated[
        str | None, typer.Option("--release-after", metavar="TIME", help="Such as 90s, 20m or 2h; 0s: by hand.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Print the quarantined units of a group, one a line, or set the rule.

    A unit of work is not assigned any more after N holders in a row expired or failed while they held it.
    """
    from rota.cli.calls import Server
    from rota.cli.quarantine import print_quarantine, set_rule

    with Server(shared(context, url, namespace)) as server:
        if (after, max_units, release_after) == (None, None, None):
            print_quarantine(server, group)
        else:
            release_after_ms = None if release_after is None else milliseconds(release_after)
            set_rule(server, group, after, max_units, release_after_ms, reason)


@app.command("release")
def release_units(
    context: typer.Context,
    group: Group,
    units: Annotated[list[str], typer.Argument(metavar="UNIT...", help="Quarantined units, such as docs/3.")],
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Release units from quarantine: the group rebalances, and assignments include them again."""
    from rota.cli.calls import Server
    from rota.protocol.messages import QuarantineGroup, QuarantineReply

    with Server(shared(context, url, namespace)) as server:
        request = QuarantineGroup(server.namespace, group, release=tuple(units), reason=reason)
        server.call(request, QuarantineReply)
    print_notice(f"released: {', '.join(units)}")


@app.command("drain")
def drain_member(
    context: typer.Context,
    group: Group,
    member_id: Member,
    max_leaving: Annotated[int, typer.Option("--max-leaving", min=1, help="Maximum number of leaving members.")] = 1,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, callback=a_number, metavar="SECONDS", help="Retry for this time; then end with 69."
        ),
    ] = 0,
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Ask whether a member may leave now, for a hook that then stops its process. The member is not removed."""
    from rota.cli.calls import Server
    from rota.cli.drains import ask_to_leave

    with Server(shared(context, url, namespace)) as server:
        ask_to_leave(server, group, member_id, max_leaving, wait, reason)


@app.command("plan")
def plan_group(
    context: typer.Context,
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
    members: Annotated[str | None, typer.Option("--members", metavar="+N", help="Number of members that join.")] = None,
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partitions", metavar="TOPIC=N", help="The topic has this number of partitions; repeatable."),
    ] = None,
    strategy: Annotated[str, typer.Option("--strategy", help="A strategy to use instead of the group's.")] = "",
    url: Url = None,
    namespace: Namespace = None,
    output: OutputFormat = None,
) -> None:
    """Show what a rebalance would move and pause, with other members, partitions or another strategy. Changes nothing.

    Without a hypothesis, show what `rota groups rebalance` would do now.
    """
    from rota.cli.calls import Server
    from rota.cli.plans import partition_counts, plan_item, print_plan, so_many_more
    from rota.core.types import TopicFacts
    from rota.core.types.plan import Hypothesis, plan_rebalance
    from rota.protocol.messages import DescribeGroup, DescribeReply

    options = shared(context, url, namespace, output)
    hypothesis = Hypothesis(without or (), so_many_more(members), partition_counts(partitions or ()), strategy)
    with Server(options) as server:
        described = server.call(DescribeGroup(server.namespace, group), DescribeReply)
        listed = server.topics(server.namespace)
    topics = {each.topic: TopicFacts(each.partitions, dict(each.attributes)) for each in listed}
    try:
        plan = plan_rebalance(described, topics, hypothesis)
    except RejectedRequest as rejected:
        raise CommandFailed(f"{rejected.detail} ({rejected.code})", exit_for(rejected.code)) from None
    if options.output is Output.TABLE:
        print_plan(group, plan)
    else:
        print_item(plan_item(group, plan), options.output, name="group_id")


@app.command("remove-member")
def remove_member(
    context: typer.Context,
    group: Group,
    member_id: Annotated[
        str, typer.Argument(metavar="MEMBER", help="The member's id.", autocompletion=complete_member_id)
    ],
    reason: Annotated[str, typer.Option("--reason", help="Reason, which is kept in the journal.")] = "",
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Remove a member: its share moves to the others at once, and its next call is rejected."""
    from rota.cli.calls import Server
    from rota.protocol.messages import LeaveGroup, LeaveReply, LeavingMember

    with Server(shared(context, url, namespace)) as server:
        check_group_id(group)
        confirm(f"Remove member {printable(member_id)} from group {group} of namespace {server.namespace}?", yes=yes)
        leaving = (LeavingMember(member_id, None, reason),)
        server.call(LeaveGroup(server.namespace, group, leaving, by_admin=True), LeaveReply)
    print_notice(f"{member_id} is removed from {group}")


def _print_description(group: DescribeReply) -> None:
    name = group.generation_protocol_name or group.protocol_name
    facts = {
        "group": group.group_id,
        "state": f"{group.state}, since {ago(group.state_since_ms)}",
        "generation": group.generation_id,
        "protocol": f"{name} of type {group.protocol_type}" if name else None,
        "leader": group.leader_id,
        "last rebalance": why(group.rebalance_reason, group.rebalance_by),
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
    from rota.protocol.wording import count

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
