"""`rota offsets`: the progress of a group, for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from rota.cli.exits import CommandFailed, Exit, exit_for
from rota.cli.lists import Limit, Listing, Sort, Watch
from rota.cli.options import Group, OutputFormat, Topic, Yes, at_server, confirm
from rota.cli.output import Output, print_notice
from rota.cli.times import ago, until
from rota.protocol.ids import check_group_id, check_topic
from rota.protocol.wire.status import STATUS

if TYPE_CHECKING:
    from rota.cli.calls import Server
    from rota.protocol.messages import PartitionResult

app = typer.Typer(no_args_is_help=True, help="Progress of groups, per topic and partition.")

Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The partition's number.")]


@app.command("list")
@at_server
def list_offsets(
    server: Server,
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """List what a group has committed."""
    from rota.protocol.messages import FetchOffsets, FetchReply

    columns = ("topic", "partition", "offset", "committed", "expires", "metadata")
    listing = Listing(columns, "name", sort, limit, watch, ages=("committed", "expires"))

    def read() -> list[dict[str, Any]]:
        fetched = server.call(FetchOffsets(server.namespace, group), FetchReply)
        return [
            {
                **to_builtins(each),
                "committed": ago(each.committed_at_ms),
                "expires": "" if each.expires_at_ms is None else until(each.expires_at_ms),
                "name": f"{each.topic}/{each.partition}",
            }
            for each in sorted(fetched.offsets, key=lambda offset: (offset.topic, offset.partition))
            if topic in (None, each.topic)
        ]

    listing.print(read, output)


@app.command("set")
@at_server
def set_offset(
    server: Server,
    group: Group,
    topic: Topic,
    partition: Partition,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The next one to process.")],
    metadata: Annotated[str, typer.Option("--metadata", help="A note that is stored with the offset.")] = "",
    retention_ms: Annotated[
        int | None,
        typer.Option(
            "--retention-ms",
            min=1,
            help="After this long the offset may expire. Without it, the server's retention counts.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow a topic that is not registered.")] = False,
) -> None:
    """Set the offset at which a group continues. The group must have no members; it is created if needed."""
    from rota.protocol.messages import NO_GENERATION, CommitOffsets, CommitReply, OffsetToCommit

    commit = OffsetToCommit(topic, partition, offset, None, metadata, retention_ms)
    check_group_id(group)
    _check_partition(server, topic, partition, force=force)
    try:
        reply = server.call(CommitOffsets(server.namespace, group, NO_GENERATION, (commit,)), CommitReply)
    except CommandFailed as failed:
        if failed.exit_code is Exit.NOT_FOUND:  # A missing group is created, so this one has members.
            failed.exit_code = Exit.CONFLICT
        raise
    _check(reply.partitions)
    print_notice(f"{group} continues at {offset} in {topic}/{partition}")


@app.command("delete")
@at_server
def delete_offsets(
    server: Server,
    group: Group,
    topic: Topic,
    partitions: Annotated[list[int], typer.Argument(metavar="PARTITION...", min=0, help="Which partitions.")],
    yes: Yes = False,
) -> None:
    """Delete a group's committed offsets for some partitions of a topic."""
    from rota.protocol.messages import DeleteOffsets, DeleteOffsetsReply, TopicPartitions

    check_group_id(group)
    check_topic(topic)
    confirm(f"Delete {len(partitions)} offsets of group {group} for topic {topic}?", yes=yes)
    selected = (TopicPartitions(topic, tuple(partitions)),)
    reply = server.call(DeleteOffsets(server.namespace, group, selected), DeleteOffsetsReply)
    _check(reply.partitions)
    print_notice(f"{group} has no offset in {', '.join(f'{topic}/{each}' for each in partitions)}")


def _check_partition(server: Server, topic: str, partition: int, *, force: bool) -> None:
    """Reject a partition that the topic does not have, and a topic that is not registered unless `force` allows it."""
    from rota.protocol.messages import GetTopic, TopicReply

    try:
        partitions = server.call(GetTopic(server.namespace, topic), TopicReply).partitions
    except CommandFailed as failed:
        if force:
            return
        if failed.exit_code is Exit.NOT_FOUND:
            detail = f"topic {topic} is not registered in namespace {server.namespace}"
            raise CommandFailed(f"{detail}; --force sets the offset anyway", Exit.NOT_FOUND) from failed
        raise
    if partition >= partitions:
        raise CommandFailed(f"topic {topic} has {partitions} partitions, 0 to {partitions - 1}", Exit.USAGE)


def _check(results: tuple[PartitionResult, ...]) -> None:
    """Fail the command if one of the partitions was rejected."""
    refused = [result for result in results if result.error != "NONE"]
    if refused:
        which = ", ".join(
            f"{each.topic}/{each.partition}: {STATUS[each.error].title} ({each.error})" for each in refused
        )
        raise CommandFailed(which, exit_for(refused[0].error) or Exit.ERROR)
