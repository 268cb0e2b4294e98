"""`rota topics`: named units of work with a number of partitions."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.consent import Yes, confirm
from rota.cli.exits import CommandFailed, Exit
from rota.cli.lists import AllNamespaces, Limit, Listing, Sort, Watch, read_patiently
from rota.cli.options import Namespace, OutputFormat, Topic, Url, shared
from rota.cli.output import print_item, print_notice
from rota.protocol.defaults import TOPICS_WAIT_MS
from rota.protocol.ids import check_topic

if TYPE_CHECKING:
    from rota.protocol.messages import ListedTopic, TopicReply

app = typer.Typer(no_args_is_help=True, help="Topics: named things that are split into partitions.")


@app.command("list")
def list_topics(
    context: typer.Context,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = False,
    all_namespaces: AllNamespaces = False,
    url: Url = None,
    namespace: Namespace = None,
    output: OutputFormat = None,
) -> None:
    """List the topics of a namespace, or of all."""
    from rota.cli.calls import Server

    options = shared(context, url, namespace, output)
    listing = Listing(("topic", "partitions", "attributes"), "topic", sort, limit, watch, all_namespaces=all_namespaces)
    with Server(options) as server:

        def read(of_namespace: str) -> list[dict[str, Any]]:
            return [_item(topic) for topic in server.topics(of_namespace)]

        listing.print(lambda: listing.gathered(server, read), options.output)


@app.command("put")
def put_topic(
    context: typer.Context,
    topic: Topic,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions; can only grow.")],
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="Repeat for several.")
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    output: OutputFormat = None,
) -> None:
    """Register a topic, or add partitions. The attributes replace the former ones."""
    from rota.cli.calls import Server
    from rota.protocol.messages import PutTopic, TopicReply

    options = shared(context, url, namespace, output)
    with Server(options) as server:
        request = PutTopic(server.namespace, topic, partitions, _attributes(attribute or []))
        print_item(_item(server.call(request, TopicReply)), options.output, name="topic")


@app.command("get")
def get_topic(
    context: typer.Context, topic: Topic, url: Url = None, namespace: Namespace = None, output: OutputFormat = None
) -> None:
    """Show one topic."""
    from rota.cli.calls import Server
    from rota.protocol.messages import GetTopic, TopicReply

    options = shared(context, url, namespace, output)
    with Server(options) as server:
        print_item(_item(server.call(GetTopic(server.namespace, topic), TopicReply)), options.output, name="topic")


@app.command("watch")
def watch_topic(
    context: typer.Context, topic: Topic, url: Url = None, namespace: Namespace = None, output: OutputFormat = None
) -> None:
    """Show a topic now and at each change; ends when it is deleted."""
    from rota.cli.calls import Server
    from rota.protocol.messages import GetTopic, TopicReply

    options = shared(context, url, namespace, output)
    with Server(options) as server:
        found = server.call(GetTopic(server.namespace, topic), TopicReply)
        while True:
            print_item(_item(found), options.output, name="topic")
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
def delete_topic(
    context: typer.Context, topic: Topic, yes: Yes = False, url: Url = None, namespace: Namespace = None
) -> None:
    """Delete a topic with the progress of all groups in it: a new topic of this name starts without progress."""
    from rota.cli.calls import Server
    from rota.protocol.messages import DeleteTopic, TopicReply

    with Server(shared(context, url, namespace)) as server:
        check_topic(topic)
        question = f"Delete topic {topic} of namespace {server.namespace}, and the progress of all groups in it?"
        confirm(question, yes=yes)
        deleted = server.call(DeleteTopic(server.namespace, topic), TopicReply)
    print_notice(f"topic {topic} is deleted; groups that had progress in it: {deleted.groups}")


def _item(topic: TopicReply | ListedTopic) -> dict[str, Any]:
    return {"topic": topic.topic, "partitions": topic.partitions, "attributes": topic.attributes}


def _attributes(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise CommandFailed(f"--attribute must be NAME=VALUE, not {pair!r}", Exit.USAGE)
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
