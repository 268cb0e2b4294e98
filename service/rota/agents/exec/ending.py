"""Exit codes of `rota lead` and `rota work` for other ends than that of the command, and the end of `--wait`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

from rota.client import Client, CoordinatorError, Member
from rota.protocol.defaults import REQUEST_TIMEOUT_MS

UNKNOWN_TOPIC: Final = 3
"""A topic is not registered, so it has no shares."""
UNAVAILABLE: Final = 69
"""EX_UNAVAILABLE: the coordinator does not serve this member, so it is unknown whether another member holds
the grant.
"""
GUARDIAN_LOST: Final = 70
"""EX_SOFTWARE: the guardian was killed, and with it all processes that it ran."""
GRANT_LOST: Final = 74
"""EX_IOERR: the grant was lost, so the command was stopped, or killed."""
NOT_GRANTED: Final = 75
"""EX_TEMPFAIL: other members held the grant during the whole wait, or its occasion is done; the command was not
started.
"""
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128
"""The base to which a signal's number is added."""

EXIT_MEANINGS: Final = {
    UNKNOWN_TOPIC: "with --wait: a topic is not registered; the command was never started",
    UNAVAILABLE: "with --wait: no server answers, or it rejects this member temporarily; the command was never started",
    GUARDIAN_LOST: "the guardian was killed, and with it the command",
    GRANT_LOST: "the grant was lost, so the command was stopped or killed",
    NOT_GRANTED: "with --wait: other members hold it; with --once-per: it has run; the command was never started",
    CANNOT_EXECUTE: "the command cannot be executed",
    NOT_FOUND: "the command was not found",
}


_log = logging.getLogger(__name__)


def exit_unserved(name: str, member: Member[Any]) -> int | None:
    """Return 69 if the coordinator does not serve this member, so that the state of others is unknown;
    otherwise None.
    """
    cause = member.trouble or ("" if member.member_id else "no answer from the coordinator yet")
    if not cause:
        return None
    _log.error("%s: gave up, and it is not known whether another member holds it: %s", name, cause)
    return UNAVAILABLE


async def _unregistered(client: Client, topics: Sequence[str]) -> list[str]:
    """Return topics without partitions; empty if the coordinator does not list them for this client in time."""
    with contextlib.suppress(TimeoutError, CoordinatorError):
        async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
            registered = {each.topic for each in await client.topics()}
            return [topic for topic in topics if topic not in registered]
    return []


def _exit_unregistered(name: str, topics: Sequence[str]) -> int:
    """Return 3: topics that are not registered have no partitions."""
    listed = ", ".join(topics)
    _log.error("%s: gave up: not registered: %s; `rota topics put TOPIC -p NUMBER` registers a topic", name, listed)
    return UNKNOWN_TOPIC


def not_granted(name: str, reason: str) -> int:
    """Return 75: other members hold the grant, which is no error."""
    _log.info("%s: gave up: %s", name, reason)
    return NOT_GRANTED


async def exit_without_share(
    client: Client, group_id: str, member: Member[Any], topics: Sequence[str], nothing_left: str
) -> int:
    """Return the exit code of a worker without a share; `nothing_left` says why the group has none for it."""
    is_answered = bool(member.member_id) and member.unreachable_since is None
    if is_answered and (missing := await _unregistered(client, topics)):
        return _exit_unregistered(group_id, missing)
    if (unserved := exit_unserved(group_id, member)) is not None:
        return unserved
    return not_granted(group_id, nothing_left if member.assignment is not None else "the group is still rebalancing")
