"""Shell completion of groups, members, topics and namespaces, with short, silent requests to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from rota.protocol.defaults import COMPLETION_TIMEOUT_MS

if TYPE_CHECKING:
    from rota.cli.calls import Server
    from rota.cli.options import Shared

_MOST = 1_000
_TIMEOUT_S = COMPLETION_TIMEOUT_MS / 1000


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of groups that start with the typed text."""
    from rota.protocol.messages import ListGroups, ListReply

    def ask(server: Server) -> list[str]:
        page = server.call(ListGroups(server.namespace, after=incomplete), ListReply)
        return [group.group_id for group in page.groups]

    return _asked(context, incomplete, ask)


def complete_member(context: typer.Context, incomplete: str) -> list[str]:
    """Return the member ids and instance ids of the group named earlier on the line."""
    return _asked(context, incomplete, lambda server: _members(server, context, "group_instance_id", "member_id"))


def complete_member_id(context: typer.Context, incomplete: str) -> list[str]:
    """Return only the member ids of that group."""
    return _asked(context, incomplete, lambda server: _members(server, context, "member_id"))


def _members(server: Server, context: typer.Context, *keys: str) -> list[str]:
    from rota.protocol.messages import DescribeGroup, DescribeReply

    group = server.call(DescribeGroup(server.namespace, context.params.get("group") or ""), DescribeReply)
    return [name for key in keys for member in group.members if (name := getattr(member, key))]


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of topics that start with the typed text."""
    from rota.protocol.messages import ListTopics, ListTopicsReply

    def ask(server: Server) -> list[str]:
        page = server.call(ListTopics(server.namespace, incomplete), ListTopicsReply)
        return [topic.topic for topic in page.topics]

    return _asked(context, incomplete, ask)


def complete_namespace(context: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces that the caller may read and that start with the typed text."""
    return _asked(context, incomplete, lambda server: server.namespaces())


def _asked(context: typer.Context, incomplete: str, ask: Callable[[Server], list[str]]) -> list[str]:
    """Return the fitting names, or no names if anything fails: an error would appear in the user's command line."""
    from rota.cli.calls import Server

    try:
        with Server(_options(context), _TIMEOUT_S) as server:
            return [name for name in ask(server) if name.startswith(incomplete)][:_MOST]
    except Exception:
        return []


def _options(context: typer.Context) -> Shared:
    """Return the shared options: during completion no command has read them."""
    from rota.cli.commands import connection

    root: Any = context.find_root()
    before = connection(root, **{name: root.params.get(name) for name in _CONNECTION})
    return before.with_given(context.params.get("url"), context.params.get("namespace"))


_CONNECTION = ("url", "namespace", "output", "token_file", "ca_file", "cert_file", "key_file", "use_context")
