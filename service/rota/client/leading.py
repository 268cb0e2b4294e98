"""The work of a group's leader: it assigns each generation, and reports a failure to the group."""

from __future__ import annotations

import asyncio
import logging
from typing import Generic, TypeVar

from rota.client.callbacks import call
from rota.client.driver import Driver
from rota.client.roles import Role
from rota.client.tasks import BackgroundTasks
from rota.core import membership as core

Share = TypeVar("Share")
_log = logging.getLogger(__name__)


class Leading(Generic[Share]):
    """Assigns one generation at a time: a slow assignment of a former one must not replace the current one."""

    def __init__(
        self, machine: core.Membership, role: Role[Share], driver: Driver, tasks: BackgroundTasks, group_id: str
    ) -> None:
        self._machine = machine
        self._role = role
        self._driver = driver
        self._tasks = tasks
        self._group_id = group_id
        self._assigning: asyncio.Task[None] | None = None

    def begin(self, event: core.JoinedAsLeader) -> None:
        """Start to assign the generation that this member leads now."""
        if self._assigning is not None:
            self._assigning.cancel()
        self._assigning = self._tasks.create(self._assign(event))

    async def _assign(self, event: core.JoinedAsLeader) -> None:
        """Assign. An exception of the strategy fails the generation for all members; its leader continues."""
        try:
            assignments = await call(self._role.assign, event)
            self._machine.assign(event.generation_id, assignments)
        except Exception as error:
            _log.exception("group %s: the assignment failed", self._group_id)
            self._machine.assignment_failed(event.generation_id, f"{type(error).__name__}: {error}")
        self._driver.wake.set()
