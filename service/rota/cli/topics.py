"""`rota topics`: named units of work with a number of partitions."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.lists import AllNamespaces, Limit, Listing, Sort, Watch, read_patiently
from rota.cli.options import OutputFormat, Topic, Yes, at_server, confirm
from rota.cli.output import Output, print_item, print_notice
from rota.protocol.defaults import TOPICS_WAIT_MS
from rota.protocol.ids import check_topic

if TYPE_CHECKING:
    from rota.cli.calls import Server
    from rota.protocol.messages import ListedTopic, TopicReply

app = typer.Typer(no_args_is_help=True, help="Topics: named things that are split into partitions.")


@app.command("list")
@at_server
def list_topics(
    server: Server,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = False,
    all_namespaces: AllNamespaces = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """List the topics of a namespace, or of all."""
    listing = Listing(("topic", "partitions", "attributes"), "topic", sort, limit, watch, all_namespaces=all_namespaces)

    def read(namespace: str) -> list[dict[str, Any]]:
        return [_item(topic) for topic in server.topics(namespace)]

    listing.print(lambda: listing.gathered(server, read), output)


@app.command("put")
@at_server
def put_topic(
    server: Server,
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions; can only grow.")],
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="Repeat for several.")
    ] = None,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Register a topic, or add partitions. The attributes replace the former ones."""
    from rota.protocol.messages import PutTopic, TopicReply

    for pair in attribute or ():
        if "=" not in pair:
            raise CommandFailed(f"--attribute must be NAME=VALUE, not {pair!r}", Exit.USAGE)
    attributes = {name: value for name, _, value in (pair.partition("=") for pair in attribute or ())}
    reply = server.call(PutTopic(server.namespace, topic, partitions, attributes), TopicReply)
    print_item(_item(reply), output, name="topic")


@app.command("get")
@at_server
def get_topic(server: Server, topic: Topic, output: OutputFormat = Output.TABLE) -> None:
    """Show one topic."""
    from rota.protocol.messages import GetTopic, TopicReply

    print_item(_item(server.call(GetTopic(server.namespace, topic), TopicReply)), output, name="topic")


@app.command("watch")
@at_server
def watch_topic(server: Server, topic: Topic, output: OutputFormat = Output.TABLE) -> None:
    """Show a topic now and at each change; ends when it is deleted."""
    from rota.protocol.messages import GetTopic, TopicReply

    found = server.call(GetTopic(server.namespace, topic), TopicReply)
    while True:
        print_item(_item(found), output, name="topic")
        sys.stdout.flush()
        version = found.version
        while found.version == version:
            try:
                changed = GetTopic(server.namespace, topic, version, TOPICS_WAIT_MS)
                found = read_patiently(partial(server.call, changed, TopicReply))
            except CommandFailed as failed:
                if failed.exit_code is not Exit.NOT_FOUND:
                    raise
                print_notice(f"topic {topic} is deleted")
                return


@app.command("delete")
@at_server
def delete_topic(server: Server, topic: Topic, yes: Yes = False) -> None:
    """Delete a topic with the progress of all groups in it: a new topic of this name starts without progress."""
    from rota.protocol.messages import DeleteTopic, TopicReply

    check_topic(topic)
    confirm(f"Delete topic {topic} of namespace {server.namespace}, and the progress of all groups in it?", yes=yes)
    deleted = server.call(DeleteTopic(server.namespace, topic), TopicReply)
    print_notice(f"topic {topic} is deleted; groups that had progress in it: {deleted.groups}")


def _item(topic: TopicReply | ListedTopic) -> dict[str, Any]:
    return {"topic": topic.topic, "partitions": topic.partitions, "attributes": topic.attributes}
