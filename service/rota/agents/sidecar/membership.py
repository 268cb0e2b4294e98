"""The sidecar's membership: publishes its share as a `Status`, and releases it only after the hooks have run, or if the
program makes no progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from rota.agents.sidecar.settings import SidecarSettings
from rota.agents.sidecar.status import Change, Changes, State, Status, by_topic, name_of
from rota.client import Client, ConnectWorker, LeadershipLost, Member, Term, WorkItem
from rota.client.events import Assigned, Lost, Revoked
from rota.client.options import to_ms
from rota.client.running import Running
from rota.client.stop_deadline import Step
from rota.core.assignors import TopicPartition
from rota.core.membership.deadline import ProcessingWatchdog
from rota.protocol.defaults import COMMAND_REBALANCE_TIMEOUT_MS

Settled = Callable[[Change], Awaitable[None]]
"""Waits until the hooks have been notified of a change, within their timeout."""
_HOOKS_END_S = 0.2
"""The time in a stop for hooks after their timeout, so that they end in order."""
Share = tuple[TopicPartition | WorkItem, ...]


class Membership(ABC):
    """Common parts of an election's and a pool's membership."""

    block: Running
    """Its `async with` block is the membership."""
    member: Member[Any]

    def __init__(self, group: str, changes: Changes, settled: Settled) -> None:
        self._group = group
        self._changes = changes
        self._settled = settled
        self._drains = False

    @abstractmethod
    async def run(self) -> None:
        """Follow the events of the membership until cancelled."""

    @abstractmethod
    def _known(self) -> Status:
        """The last known status, even if it has expired."""

    @property
    def has_joined(self) -> bool:
        """Whether the coordinator has ever answered."""
        return self.member.member_id != "" or self._drains

    @property
    def drains(self) -> bool:
        return self._drains

    @property
    def holds_something(self) -> bool:
        """Whether the member holds a share with which the program should make progress."""
        status = self.status()
        return status.state is State.LEADER or bool(status.assignment)

    def status(self) -> Status:
        """The status now, by the clock, with the trouble of the member."""
        return replace(self._timed_status(), trouble=self.member.trouble)

    def _timed_status(self) -> Status:
        if self._drains:
            return Status(self._group, State.DRAINING)
        valid_until = self.member.valid_until
        now = asyncio.get_running_loop().time()
        return self._known().unless_over(None if valid_until is None else int((valid_until - now) * 1000))

    async def resign(self, reason: str) -> None:
        """Release the share in order, so that another member takes over, until `come_back`."""
        await self.member.step_aside(reason)
        self._publish("unknown")

    def come_back(self) -> None:
        if not self._drains:
            self.member.come_back()

    async def drain(self, reason: str) -> None:
        """Release the share permanently."""
        if not self._drains:
            await self.member.step_aside(reason)
            await self._settled(self._publish_draining())

    async def stop(self, hooks_s: float) -> None:
        """Release the share and leave, with one deadline for the hooks, which have `hooks_s`, and for the
        coordinator.
        """
        await self.member.close(hooks_s + _HOOKS_END_S)
        if not self._drains:
            settling = asyncio.ensure_future(self._settled(self._publish_draining()))
            await self.member._deadline.wait((settling,), Step.END)
            settling.cancel()

    def _publish_draining(self) -> Change:
        self._drains = True
        return self._publish("draining")

    def announce(self) -> None:
        """Publish the unknown state at the start: a label or file may still show that of a former process."""
        self._publish("unknown")

    def _publish(self, kind: str) -> Change:
        return self._changes.publish(kind, self.status(), time.time_ns() // 1_000_000)


class ElectionMembership(Membership):
    """A candidate in an election."""

    def __init__(self, client: Client, settings: SidecarSettings, changes: Changes, settled: Settled) -> None:
        super().__init__(settings.group, changes, settled)
        self.block = self._election = client.leader(
            settings.group,
            session_timeout=settings.session_timeout,
            rebalance_timeout=max(settings.session_timeout, COMMAND_REBALANCE_TIMEOUT_MS / 1000),
            group_instance_id=settings.instance_id,
            priority=settings.priority,
            preempt_after=settings.preempt_after,
            leave_on_close=settings.leaves,
        )
        self.member = self._election.member
        self._leader_id = ""
        self._steps_down = False
        self._published_token = -1

    def _known(self) -> Status:
        member, term = self.member, self._election.term
        leads = term is not None and not self._steps_down
        if not leads and (not self._leader_id or self._leader_id == member.member_id):
            return Status(self._group, State.UNKNOWN)
        return Status(
            self._group,
            State.LEADER if leads else State.FOLLOWER,
            name=name_of(member.member_id if leads else self._leader_id),
            is_self=leads,
            member_id=member.member_id,
            token=term.fencing_token if leads and term is not None else member.fencing_token,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_leaders())
            tasks.create_task(self._follow_terms())

    async def _follow_terms(self) -> None:
        async for term in self._election.terms():
            try:
                await self._serve(term)
            except LeadershipLost:
                continue

    async def _serve(self, term: Term) -> None:
        async with term:
            self._steps_down = False
            self._published_token = term.fencing_token
            self._publish("elected")
            try:
                await asyncio.Event().wait()  # The term cancels its body.
            finally:
                # While this member still leads, the end is orderly, and waits for the hooks.
                in_order = bool(self.member.assignment) or term._is_handed_over()
                self._steps_down, self._published_token = True, -1
                change = self._publish("revoked" if in_order else "lost")
                if in_order:
                    await self._settled(change)

    async def _follow_leaders(self) -> None:
        async for event in self.member.events():
            match event:
                case Assigned(leader_id=leader_id, is_leader=False) if leader_id != self._leader_id:
                    self._leader_id = leader_id
                    self._publish("following")
                case Assigned(fencing_token=token, leader_id=leader_id, is_leader=True):
                    self._leader_id = leader_id
                    if self._election.is_leader and token > self._published_token >= 0:
                        self._published_token = token
                        self._publish("generation")
                case Lost(share=share) | Revoked(share=share):
                    self._leader_id = ""
                    if not share:  # The end of a leader's term is published there.
                        self._publish("unknown")


class PoolMembership(Membership):
    """A worker with a share of topics, or of connectors and tasks."""

    def __init__(self, client: Client, settings: SidecarSettings, changes: Changes, settled: Settled) -> None:
        super().__init__(settings.group, changes, settled)
        self._share: Share | None = None
        assert settings.shared is not None
        self.block = self.member = self._worker = settings.shared.member(
            client,
            settings.group,
            session_timeout=settings.session_timeout,
            rebalance_timeout=2 * settings.session_timeout + settings.revoke_timeout,
            group_instance_id=settings.instance_id,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_lost,
            leave_on_close=settings.leaves,
        )

    def _known(self) -> Status:
        if self._share is None:
            return Status(self._group, State.UNKNOWN)
        member = self._worker
        return Status(
            self._group,
            State.ASSIGNED,
            name=name_of(member.member_id),
            is_self=True,
            member_id=member.member_id,
            token=member.fencing_token,
            assignment=by_topic(self._share),
            config_offset=member.config_offset if isinstance(member, ConnectWorker) else -1,
        )

    async def run(self) -> None:
        await asyncio.Event().wait()  # Callbacks publish every change.

    def _on_assigned(self, _added: Share, held: Share) -> None:
        self._share = held
        self._publish("assigned")

    async def _on_revoked(self, removed: Share) -> None:
        self._share = tuple(place for place in self._share or () if place not in removed)
        if removed:
            await self._settled(self._publish("revoked"))

    def _on_lost(self, _removed: Share) -> None:
        self._share = None
        self._publish("lost")


_LONGEST_LOOK_S = 1.0

_log = logging.getLogger(__name__)


class Progress:
    """Releases the share if the program has not reported progress for too long, until it does so again."""

    def __init__(self, membership: Membership, timeout_s: float | None) -> None:
        self._membership = membership
        self._timeout_s = timeout_s
        self._watchdog = ProcessingWatchdog(to_ms(timeout_s))
        self._hangs = False
        self._come_back_at: float | None = None
        self._changed = asyncio.Event()

    def made(self) -> None:
        """Note that the program made progress."""
        self._watchdog.progressed(self._now_ms())
        if self._hangs:
            self._hangs = False
            self.come_back_in(0.0)
        self._changed.set()

    def come_back_in(self, seconds: float) -> None:
        """Join again after this time, unless the program hangs."""
        self._come_back_at = asyncio.get_running_loop().time() + seconds
        self._changed.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._look()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_in_s()):
                    await self._changed.wait()

    async def _look(self) -> None:
        now_ms = self._now_ms()
        if self._come_back_at is not None and not self._hangs and now_ms >= self._come_back_at * 1000:
            self._come_back_at = None
            self._membership.come_back()
        if not self._membership.holds_something:
            self._watchdog.rest()
        elif self._watchdog.due_at_ms is None:
            # The share is new: its time starts now.
            self._watchdog.progressed(now_ms)
        elif self._watchdog.is_over(now_ms):
            self._hangs = True
            self._watchdog.rest()
            _log.error("no progress for %g s: the share is released", self._timeout_s)
            await self._membership.resign("no progress")

    def _look_in_s(self) -> float:
        now_ms = self._now_ms()
        alarms_ms = [int(at * 1000) for at in (self._come_back_at,) if at is not None]
        alarms_ms += [at_ms for at_ms in (self._watchdog.due_at_ms,) if at_ms is not None]
        if not alarms_ms:
            return _LONGEST_LOOK_S if self._timeout_s is None else min(_LONGEST_LOOK_S, self._timeout_s / 4)
        return max(0.005, min(_LONGEST_LOOK_S, (min(alarms_ms) - now_ms) / 1000))

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)
