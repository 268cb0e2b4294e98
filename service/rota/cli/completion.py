"""Names of groups and topics, for the shell to complete: asked of the server, quickly, and in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from rota.protocol.defaults import COMPLETION_TIMEOUT_MS

if TYPE_CHECKING:
    from rota.cli.options import Shared

_MOST = 1_000


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of groups that begin with what is typed."""
    from rota.protocol.messages import ListGroups

    return _names(context, incomplete, "groups", "group_id", lambda namespace: ListGroups(namespace, after=incomplete))


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """The names of topics that begin with what is typed."""
    from rota.protocol.messages import ListTopics

    return _names(context, incomplete, "topics", "topic", lambda namespace: ListTopics(namespace, incomplete))


def _names(context: typer.Context, incomplete: str, kind: str, key: str, request: Any) -> list[str]:
    """Empty where anything fails: what a completion prints would end up in the user's command line."""
    from rota.cli.calls import Server
    from rota.wire.routes import encode_request

    try:
        with Server(_options(context)) as server:
            target = encode_request(request(server.namespace))
            page = server.exchange(target.method, target.path, target.query, timeout_s=COMPLETION_TIMEOUT_MS / 1000)
            names = [str(item[key]) for item in page[kind][:_MOST]]
    except Exception:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _options(context: typer.Context) -> Shared:
    """The shared options: while a line is completed, no command runs that would have read them."""
    from rota.cli.commands import connection

    root: Any = context.find_root()
    before = connection(root, **{name: root.params.get(name) for name in _CONNECTION})
    return before.with_given(context.params.get("url"), context.params.get("namespace"), None)


_CONNECTION = ("url", "namespace", "output", "token_file", "ca_file", "cert_file", "key_file", "use_context")
