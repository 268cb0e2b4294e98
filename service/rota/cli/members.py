"""Checks and connections of `rota lead`, `rota work` and `rota sidecar` before they join."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.options import Shared, check_connection, usage
from rota.credentials import SECRET_VARIABLES
from rota.protocol.defaults import PREEMPT_AFTER_MS
from rota.protocol.ids import check_group_id, check_instance_id, check_topic
from rota.protocol.limits import MAX_DELAY_MS, MAX_PREEMPT_AFTER_MS, MAX_TOPICS_DEBOUNCE_MS

if TYPE_CHECKING:
    from rota.agents.shared_work import SharedWork
    from rota.client import Client

Outcome = TypeVar("Outcome")

LONGEST_MS = 2**31 - 1
"""The longest time that a message can hold."""
LONGEST_SESSION_MS = 3_600_000
LONGEST_STOP_MS = 43_200_000
"""Together with two sessions, less than the one day that a rebalance may wait for a member."""
Priority = Annotated[
    int,
    typer.Option(
        envvar="ROTA_PRIORITY",
        help="The candidate of the highest priority leads; a leader of a lower one hands over in order.",
    ),
]
PreemptAfter = Annotated[
    float,
    typer.Option(
        "--preempt-after",
        min=0,
        max=MAX_PREEMPT_AFTER_MS / 1000,
        envvar="ROTA_PREEMPT_AFTER",
        metavar="SECONDS",
        help="Time for which this candidate must outrank a leader before that one hands over.",
    ),
]
NoPreempt = Annotated[
    bool,
    typer.Option("--no-preempt", envvar="ROTA_NO_PREEMPT", help="Apply the priority only if there is no leader."),
]
PREEMPT_AFTER_S = PREEMPT_AFTER_MS / 1000
_LOG_FORMAT = "rota: %(message)s"
_MAX_OFFSET = 2**63 - 1

_log = logging.getLogger(__name__)


TopicRegex = Annotated[
    str | None,
    typer.Option(
        "--topic-regex",
        envvar="ROTA_TOPIC_REGEX",
        metavar="REGEX",
        help="Instead of --topic: all registered topics whose whole name matches this RE2 expression.",
    ),
]
Except = Annotated[
    list[str] | None,
    typer.Option(
        "--except",
        envvar="ROTA_TOPICS_EXCEPT",
        metavar="TOPIC",
        help="With --topic-regex: topic to exclude; audit-* for several.",
        show_default=False,
    ),
]
TopicsDebounce = Annotated[
    int,
    typer.Option(
        "--topics-debounce-ms",
        envvar="ROTA_TOPICS_DEBOUNCE_MS",
        min=0,
        max=MAX_TOPICS_DEBOUNCE_MS,
        help="Time for which changes of topics are collected before one rebalance.",
    ),
]


Connector = Annotated[
    list[str] | None,
    typer.Option(
        "--connector",
        "-c",
        envvar="ROTA_CONNECTORS",
        metavar="NAME",
        help="Instead of --topic: topic that is a connector, its partitions are tasks; orders-* for several.",
        show_default=False,
    ),
]
ConfigOffset = Annotated[
    Path | None,
    typer.Option(
        "--config-offset-file",
        envvar="ROTA_CONFIG_OFFSET_FILE",
        metavar="FILE",
        help="With --connector: file with this worker's position in its configuration, a number.",
        show_default=False,
    ),
]
ReturnDelay = Annotated[
    int,
    typer.Option(
        "--scheduled-rebalance-max-delay-ms",
        envvar="ROTA_SCHEDULED_REBALANCE_MAX_DELAY_MS",
        min=0,
        max=MAX_DELAY_MS,
        help="With --connector: time for which the work of an absent worker waits for its return.",
    ),
]
DEFAULT_STRATEGY = "cooperative-sticky"


def shared_work_of(
    topics: Sequence[str] | None,
    topic_regex: str | None,
    connectors: Sequence[str] | None,
    strategy: str,
    topics_debounce_ms: int,
    config_offset_file: Path | None,
    topics_except: Sequence[str] | None,
    scheduled_rebalance_max_delay_ms: int,
) -> SharedWork:
    """Return the shared work.

    Raise `CommandFailed` unless exactly one option names it, and the others match; `RejectedRequest` for a wrong name.
    An invalid name can never work, so it is rejected before anything starts.
    """
    if bool(topics) + bool(topic_regex) + bool(connectors) != 1:
        raise CommandFailed("one of --topic TOPIC, --topic-regex REGEX and --connector NAME", Exit.USAGE)
    if topics_except and not topic_regex:
        raise CommandFailed("--except goes with --topic-regex", Exit.USAGE)
    if connectors and (strategy != DEFAULT_STRATEGY or topics_debounce_ms):
        raise CommandFailed("--strategy and --topics-debounce-ms do not go with --connector", Exit.USAGE)
    if config_offset_file is not None and not connectors:
        raise CommandFailed("--config-offset-file goes with --connector", Exit.USAGE)
    from rota.agents.shared_work import SharedWork
    from rota.client.consumer_protocol import TopicRole
    from rota.core.types.topics import PATTERN_END
    from rota.core.types.topics import topic_regex as compiled

    names, patterns, excepted = tuple(topics or ()), tuple(connectors or ()), tuple(topics_except or ())
    for name in (*names, *(each.removesuffix(PATTERN_END) for each in (*patterns, *excepted) if each != PATTERN_END)):
        check_topic(name)
    with usage():
        if topic_regex:
            compiled(topic_regex)
        if not connectors:
            TopicRole((strategy,), names, {})
        config_offset = None if config_offset_file is None else ConfigOffsetFile(config_offset_file)
    return SharedWork(
        names,
        strategy,
        topic_regex or "",
        topics_debounce_ms / 1000,
        excepted,
        patterns,
        config_offset,
        scheduled_rebalance_max_delay_ms / 1000,
    )


def run_member(
    options: Shared,
    group: str,
    running: Callable[[Client], Awaitable[Outcome]],
    pass_env: Collection[str] | None,
    *,
    instance_id: str | None = None,
    client_id: str | None = None,
    quiet: bool = False,
    retry_refusals: bool = False,
) -> Outcome:
    """Check all settings, connect, and run a member to its end.

    Its commands inherit the environment, with the coordinator's address for their own requests, and with the secret
    variables that `pass_env` names. Without `retry_refusals` a rejected token or permission ends the member.
    """
    from rota.agents.exec import tree
    from rota.client import connect

    check_connection(options)
    check_group_id(group)
    if instance_id is not None:
        check_instance_id(instance_id)
    for name in set(SECRET_VARIABLES).difference(pass_env or ()):
        os.environ.pop(name, None)
    os.environ.update(ROTA_URL=options.url, ROTA_NAMESPACE=options.namespace)
    tree.hide_memory()

    async def connected() -> Outcome:
        with usage():
            connecting = connect(
                options.url,
                options.namespace,
                client_id=client_id,
                credentials=options.credentials,
                retry_refusals=retry_refusals,
            )
        async with connecting as client:
            return await running(client)

    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format=_LOG_FORMAT)
    for library in ("httpx", "uvicorn"):
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("rota.client.clock").setLevel(logging.ERROR)  # The error's advice is for authors of programs.
    return asyncio.run(connected())


class ConfigOffsetFile:
    """Reads the file at each call, so that a worker needs no restart for a new position."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError if the file has no offset."""
        self._path = path
        self._offset = _read(path)

    def __call__(self) -> int:
        """Return the offset; the former one, with a warning, while the file cannot be read."""
        try:
            self._offset = _read(self._path)
        except ValueError as error:
            _log.warning("the config offset stays %d: %s", self._offset, error)
        return self._offset


def _read(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from error
    if not text.isascii() or not text.isdigit() or len(text) > len(str(_MAX_OFFSET)) or int(text) > _MAX_OFFSET:
        raise ValueError(f"{path}: a config offset is a number from 0 to {_MAX_OFFSET}")
    return int(text)
