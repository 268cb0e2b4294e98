"""Why nothing was granted within `--wait`: one line on standard error, and the exit code that goes with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rota.client import Member
from rota.exec.ending import NOT_GRANTED, UNAVAILABLE, UNKNOWN_TOPIC

_log = logging.getLogger(__name__)


def exit_unserved(name: str, member: Member[Any]) -> int | None:
    """69 where the coordinator does not serve this member, so that nothing is known of the others; None otherwise."""
    cause = member.trouble or ("" if member.member_id else "no answer from the coordinator yet")
    if not cause:
        return None
    _log.error("%s: gave up, and it is not known whether another member holds it: %s", name, cause)
    return UNAVAILABLE


def exit_unregistered(name: str, topics: Sequence[str]) -> int:
    """3: topics that are not registered have no partitions."""
    listed = ", ".join(topics)
    _log.error("%s: gave up: not registered: %s; `rota topics put TOPIC -p NUMBER` registers a topic", name, listed)
    return UNKNOWN_TOPIC


def not_granted(name: str, reason: str) -> int:
    """75: other members hold it, which is no error."""
    _log.info("%s: gave up: %s", name, reason)
    return NOT_GRANTED
