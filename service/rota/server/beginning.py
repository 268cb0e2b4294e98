"""Where a reader of the journal begins, the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, TypeAlias, TypeVar

from rota.core.replica.ports import StoreUnavailable
from rota.protocol.errors import LinesPruned
from rota.server.ports import ServedCoordinator

Found = TypeVar("Found")

EARLIEST: Literal["earliest"] = "earliest"
"""In place of a revision: the first line that is not pruned. Kafka's word, of `auto.offset.reset`."""
After: TypeAlias = int | Literal["earliest"]


async def from_earliest(read: Callable[[int], Awaitable[Found]], after: int = 0) -> Found:
    """Call `read` with `after`, or with the revision before the first line of the journal where that is higher.

    A journal that is pruned between two attempts raises again, with a higher revision.
    """
    while True:
        try:
            return await read(after)
        except LinesPruned as pruned:
            after = pruned.first_revision - 1


async def beginning_of_watch(
    coordinator: ServedCoordinator, namespace: str, group_id: str, after: After | None
) -> int | None:
    """The revision after which a watch of the group begins; None: from now on.

    Raises `NotInJournal` before the stream begins, where lines after `after` are pruned by now, or the journal ends
    before `after`. A watch that is overtaken later raises it, too, so a store that does not answer now does not prevent
    the watch.
    """

    async def check(after_revision: int) -> int:
        await coordinator.check_revision(namespace, group_id, after_revision)
        return after_revision

    if after is None:
        return None
    if after == EARLIEST:
        return await from_earliest(check)
    with suppress(StoreUnavailable):
        await check(after)
    return after
