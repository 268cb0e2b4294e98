"""Progress that a member commits: fenced by its generation, and repeated while that may help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from rota.client.calls import patience_ms
from rota.client.driver import Driver
from rota.client.errors import (
    CoordinatorError,
    CoordinatorUnreachable,
    IllegalGeneration,
    MembershipLost,
    RebalanceInProgress,
    error_for,
)
from rota.client.holding import Holding
from rota.client.roles import Role
from rota.membership import Membership, State
from rota.membership.backoff import Backoff
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, CommitReply, OffsetToCommit

Share = TypeVar("Share")

_TIMEOUT_MS = 5_000


class Commits(Generic[Share]):
    """A member's commits. See `Member.commit` for what they promise."""

    def __init__(
        self,
        machine: Membership,
        role: Role[Share],
        driver: Driver,
        holding: Holding[Share],
        jitter: Callable[[], float],
    ) -> None:
        self._machine = machine
        self._role = role
        self._driver = driver
        self._holding = holding
        self._jitter = jitter

    async def commit(self, items: tuple[OffsetToCommit, ...]) -> None:
        backoff = Backoff(self._machine.settings.backoff_first_ms, self._machine.settings.heartbeat_backoff_cap_ms)
        concerned = self._role.concerned(self._holding.owned, items)
        while (error := await self._commit_once(request := self._fenced(items))) is not None:
            if isinstance(error, IllegalGeneration | RebalanceInProgress):
                if not await self._moved_on(request.generation_id, concerned):
                    raise error
            elif not error.retriable or not self._is_in(request.generation_id):
                raise error
            else:
                await self._pause_before_again(backoff.next_ms(self._jitter()), error)
                if not self._holds:
                    raise error

    async def _commit_once(self, request: CommitOffsets) -> CoordinatorError | None:
        answer = await self._driver.commit(request, _TIMEOUT_MS)
        if isinstance(answer, CoordinatorUnreachable):
            return answer
        reply = answer.reply
        if reply.error is not ErrorCode.NONE:
            return error_for(reply.error, reply.detail, answer.retry_after_ms)
        assert isinstance(reply, CommitReply)
        refused = [partition for partition in reply.partitions if partition.error is not ErrorCode.NONE]
        if not refused:
            return None
        names = ", ".join(f"{partition.topic}/{partition.partition}" for partition in refused)
        return error_for(refused[0].error, f"not committed: {names}")

    async def _moved_on(self, generation_id: int, concerned: Share) -> bool:
        """Wait for the generation after this one; whether this member still holds there what it is about."""
        machine, holding = self._machine, self._holding
        while machine.generation_id == generation_id or machine.state is not State.STABLE:
            gives_up = machine.state is State.REVOKING and not self._role.is_cooperative
            if not self._holds or gives_up or holding.is_leaving:
                return False
            await self._driver.changed.wait()
        return holding.owned is not None and not self._role.without(concerned, holding.owned)

    async def _pause_before_again(self, pause_ms: int, error: CoordinatorError) -> None:
        """As the coordinator asks, but not longer than what is held is good for."""
        asked_ms = patience_ms(error.code, error.retry_after_ms)
        left_ms = (self._machine.deadline_ms or 0) - self._driver.now_ms()
        await asyncio.sleep(max(pause_ms, min(asked_ms, left_ms)) / 1000)

    def _fenced(self, offsets: tuple[OffsetToCommit, ...]) -> CommitOffsets:
        if not self._holds:
            raise MembershipLost("this member holds nothing, so it cannot commit")
        settings, machine = self._machine.settings, self._machine
        return CommitOffsets(
            settings.namespace,
            settings.group_id,
            machine.generation_id,
            offsets,
            machine.member_id,
            settings.group_instance_id,
        )

    @property
    def _holds(self) -> bool:
        return self._holding.current is not None and self._machine.holds(self._driver.now_ms())

    def _is_in(self, generation_id: int) -> bool:
        return self._holds and self._machine.generation_id == generation_id
