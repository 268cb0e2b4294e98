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
    from rota.protocol.messages import ListGroups

    found = _items(context, "groups", lambda namespace: ListGroups(namespace, after=incomplete))
    return _fitting([str(group["group_id"]) for group in found], incomplete)


def complete_member(context: typer.Context, incomplete: str) -> list[str]:
    """Return the member ids and instance ids of the group named earlier on the line."""
    return _fitting([*_ids(context, "group_instance_id"), *_ids(context, "member_id")], incomplete)


def complete_member_id(context: typer.Context, incomplete: str) -> list[str]:
    """Return only the member ids of that group."""
    return _fitting(_ids(context, "member_id"), incomplete)


def _ids(context: typer.Context, key: str) -> list[str]:
    from rota.protocol.messages import DescribeGroup

    group = context.params.get("group") or ""
    found = _items(context, "members", lambda namespace: DescribeGroup(namespace, group))
    return [str(member[key]) for member in found if member.get(key)]


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of topics that start with the typed text."""
    from rota.protocol.messages import ListTopics

    found = _items(context, "topics", lambda namespace: ListTopics(namespace, incomplete))
    return _fitting([str(topic["topic"]) for topic in found], incomplete)


def complete_namespace(context: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces that the caller may read and that start with the typed text."""
    return _fitting(_asked(context, lambda server: server.namespaces(timeout_s=_TIMEOUT_S)), incomplete)


def _items(context: typer.Context, kind: str, request: Callable[[str], Any]) -> list[Any]:
    """Return the server's answer to a request for this namespace; `kind` is the name of the list in it."""
    from rota.protocol.wire.routes import encode_request

    def ask(server: Server) -> list[Any]:
        target = encode_request(request(server.namespace))
        answer = server.exchange(target.method, target.path, target.query, timeout_s=_TIMEOUT_S)
        return list(answer[kind])

    return _asked(context, ask)


def _asked(context: typer.Context, ask: Callable[[Server], list[Any]]) -> list[Any]:
    """Return the names, or no names if anything fails: an error message would appear in the user's command line."""
    from rota.cli.calls import Server

    try:
        with Server(_options(context)) as server:
            return ask(server)
    except Exception:
        return []


def _fitting(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)][:_MOST]


def _options(context: typer.Context) -> Shared:
    """Return the shared options: during completion no command has read them."""
    from rota.cli.commands import connection

    root: Any = context.find_root()
    before = connection(root, **{name: root.params.get(name) for name in _CONNECTION})
    return before.with_given(context.params.get("url"), context.params.get("namespace"))


_CONNECTION = ("url", "namespace", "output", "token_file", "ca_file", "cert_file", "key_file", "use_context")
