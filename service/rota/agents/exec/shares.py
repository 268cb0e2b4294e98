"""Common parts of `rota work` for partitions and connectors: waiting for a share, and its grant to a command."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.agents.exec.run import Grant
from rota.client import Member


async def until(changed: asyncio.Event, is_so: Callable[[], bool], wait_s: float | None) -> None:
    """Return when `is_so`, which is checked after each `changed`, or at the timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while not is_so():
                changed.clear()
                await changed.wait()


def share_grant(
    group_id: str, member: Member[Any], token: int, share: Sequence[tuple[str, int]], more: Mapping[str, str]
) -> Grant:
    """Return the grant of a share to a command; `more` is only for its environment."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in share:
        numbers.setdefault(topic, []).append(partition)
    assignment = [{"topic": topic, "partitions": partitions} for topic, partitions in numbers.items()]
    variables = {**more, "ROTA_ASSIGNMENT": json.dumps(assignment)}
    return Grant(group_id, token, member.member_id, variables, {"assignment": assignment})
