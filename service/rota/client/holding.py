"""A member's share: its assignment, the order of its callbacks, its revocation or loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from rota.client import metrics
from rota.client.callbacks import (
    CallbackQueue,
    Listeners,
    notify,
    notify_lost,
    notify_revoked,
    on_return,
)
from rota.client.driver import Driver
from rota.client.errors import losses_are_expected
from rota.client.events import Assigned, Broadcast, Lost, MemberEvent, RebalanceStarted, Revoked
from rota.client.roles import Role
from rota.client.stats import MemberStats
from rota.client.stop_deadline import Step, StopDeadline
from rota.core.membership import Membership
from rota.core.membership import events as core

if TYPE_CHECKING:
    from rota.client.commits import Commits

Share = TypeVar("Share")

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Revocation(Generic[Share]):
    """A share that is being revoked."""

    share: Share
    has_returned: bool = False
    """Whether its `on_revoked` has returned, even in a thread before the event loop has noticed."""

    def returned(self) -> None:
        """Note that `on_revoked` has returned. Any thread may call it."""
        self.has_returned = True


class Holding(Generic[Share]):
    """A member's share, from its assignment to its last callback.

    After each wait for the user's code the current share is read again: code that ignores its cancellation may return
    after several later shares.
    """

    def __init__(
        self,
        machine: Membership,
        role: Role[Share],
        listeners: Listeners[Share],
        driver: Driver,
        callbacks: CallbackQueue,
        broadcast: Broadcast[MemberEvent[Share]],
        on_error: Callable[[Exception], None],
        stats: MemberStats,
        deadline: StopDeadline,
    ) -> None:
        """`on_error` handles an error of the role."""
        self.commits: Commits[Share]
        """Queued commits: sent before a share is revoked, dropped when it is lost. Set by the member."""
        self.current: Assigned[Share] | None = None
        """The share that the coordinator has assigned to this member."""
        self.owned: Share | None = None
        """The share that the callbacks have received, with the part in revocation: no other member has any
        part of it.
        """
        self._revocation: _Revocation[Share] | None = None
        """The part of `owned` that is being revoked: its `on_revoked` runs, or its last commits are sent."""
        self._cut_off: Share | None = None
        """The part whose `on_revoked` still ran when the share was lost at the close timeout."""
        self.era = 0
        """The number of times that the whole share was revoked or lost."""
        self.is_leaving = False
        """The member is about to leave, perhaps to return: it accepts no share, and joins no generation."""
        self.is_given_up = False
        """The member is about to leave, and its last callbacks are running."""
        self._last: tuple[Share | None, int] = (None, -1)
        """The share at this member's last join, and its generation."""
        self._must_join = False
        """The member has revoked a part in order since its last join: other members get it only after this one joins
        again.
        """
        self._machine = machine
        self._role = role
        self._listeners = listeners
        self._driver = driver
        self._callbacks = callbacks
        self._broadcast = broadcast
        self._on_error = on_error
        self._ending = 0
        """The number of lost shares on which the program has not yet ended its work."""
        self._stats = stats
        self._deadline = deadline

    @property
    def stopped(self) -> Share | None:
        """The part of `owned` whose `on_revoked` has returned, while its last commits are sent."""
        revocation = self._revocation
        return revocation.share if revocation is not None and revocation.has_returned else None

    def at_work(self) -> str:
        """Name the code that has not ended, for the log; empty if no callback runs."""
        if self._callbacks.is_idle:
            return ""
        if self._revocation is None:
            return "a callback"
        return "the last commit" if self._revocation.has_returned else "on_revoked"

    def take(self, event: core.Assigned) -> None:
        """Accept an assignment."""
        try:
            share = self._role.read(event)
        except Exception as error:
            self._on_error(error)
            return
        leads, token = event.is_leader, event.fencing_token
        assigned = Assigned(event.generation_id, share, leads, event.leader_id, event.protocol_name, token)
        if not self.is_leaving:
            self.current = assigned
            self._callbacks.add(partial(self._take_up, assigned))
        elif self.owned is not None:
            # Wait for the last commits of the revoked part.
            self.current = assigned

    def move_on(self, event: core.RebalanceStarted) -> None:
        """Start a rebalance: revoke what the role requires, then join again."""
        self._broadcast.publish(RebalanceStarted(event.generation_id, event.reason))
        self._callbacks.add(self._rejoin)

    def lose(self, reason: str) -> None:
        """Stop work at once, without waiting for running callbacks."""
        self._stop_at_once(reason)
        try:
            self._machine.say(self._role.protocols(*self._last))
        except Exception as error:  # If the work is already being ended, the program's function may raise this.
            if not self.is_leaving:
                self._on_error(error)

    def _stop_at_once(self, reason: str) -> None:
        current, self.current = self.current, None
        owned, self.owned = self.owned, None
        self.era += 1
        revocation = self._revocation
        if owned is not None:
            owned = self._not_stopped(owned, revocation)
        is_cut_off = revocation is not None and not revocation.has_returned and self.is_given_up
        self._cut_off = revocation.share if revocation is not None and is_cut_off else None
        self._last = (None, -1)
        self._must_join = False
        self.commits.drop()
        if current is None or owned is None:
            self._callbacks.interrupt()
            return
        _log.warning(
            "member %s of group %s lost its assignment: %s",
            self._machine.member_id,
            self._machine.settings.group_id,
            reason,
        )
        self._stats.count(metrics.LOST, owned)
        self._broadcast.publish(Lost(current.generation_id, owned, reason))
        self._ending += 1
        self._machine.hold_off(True)
        self._callbacks.interrupt(partial(self._end_lost, owned, revocation))

    def unnotified(self, lost: Share) -> Share | None:
        """Return the part of a lost share whose `on_revoked` was not called while closing; None if it was called for
        all.
        """
        return lost if self._cut_off is None else (self._role.without(lost, self._cut_off) or None)

    async def give_all_up(self) -> None:
        """Stop all work in order and release the share. To be added to the callbacks."""
        current = self.current
        if self.owned is not None:
            await self._give_up(self._machine.generation_id, self.owned)
        if self.is_leaving or self.current is current:
            self.owned = self.current = None
            self.era += 1

    def _not_stopped(self, share: Share, revocation: _Revocation[Share] | None) -> Share | None:
        """Return the part of `share` whose work continues, depending on an `on_revoked` that runs in a thread."""
        if revocation is None or not revocation.has_returned:
            return share
        return self._role.without(share, revocation.share) or None

    async def _end_lost(self, owned: Share, revocation: _Revocation[Share] | None) -> None:
        """Notify the program that a share is lost. As in Kafka's consumers, the member joins again when its work has
        ended.
        """
        loop, settings = asyncio.get_running_loop(), self._machine.settings
        overdue = loop.call_later(settings.session_timeout_ms / 1000, self._warn_of_slow_end)
        try:
            deadline = loop.time() + settings.margin_ms / 1000
            if (lost := self._not_stopped(owned, revocation)) is not None:
                await notify_lost(self._listeners, lost, self.unnotified(lost), deadline=deadline)
            await self._callbacks.until_interrupted_end()
        finally:
            overdue.cancel()
            self._ending -= 1
            self._machine.hold_off(self._ending > 0)
            self._driver.wake.set()

    def _warn_of_slow_end(self) -> None:
        _log.warning(
            "group %s: the work on a lost share has run for longer than the session (%d ms): "
            "the member joins again when it has ended and its callbacks have returned",
            self._machine.settings.group_id,
            self._machine.settings.session_timeout_ms,
        )

    async def _take_up(self, assigned: Assigned[Share]) -> None:
        """Revoke the removed part of the share, then add the new part."""
        owned, share = self.owned, assigned.share
        removed = None if owned is None else self._role.without(owned, share)
        if owned is not None and removed and self.current is assigned:
            await self._give_up(assigned.generation_id, removed)
            if self.owned is owned:
                self.owned = self._role.without(owned, removed)
                self._must_join = self._role.is_cooperative
        if self.current is not assigned:
            return
        self.owned = share
        self._broadcast.publish(assigned)
        added = share if owned is None else self._role.without(share, owned)
        self._stats.count(metrics.ASSIGNED, added)
        with losses_are_expected("on_assigned", lambda: self.current is not assigned or not self._driver.holds()):
            await notify(
                self._listeners.on_assigned, added, share, deadline=self._driver.loop_time(self._machine.deadline_ms)
            )
        if self.current is assigned and (self._must_join or self._role.hands_over):
            # The group waits for this join, also if a later generation started during the revocation, or if a leader
            # that must hand over had not started its work.
            self._driver.rejoin("gave up what was revoked")

    async def _rejoin(self) -> None:
        """Revoke what the role requires and join the next generation, unless this member is about to leave."""
        current, owned = self.current, self.owned
        if self.is_leaving:
            return
        if not self._role.is_cooperative:
            await self.give_all_up()
        else:
            await self._give_up_unwanted(current)
        if self.current is current or self.current is None:
            if current is not None and owned is not None:
                self._last = (self.owned if self._role.is_cooperative else owned, current.generation_id)
            protocols = self._role.protocols(*self._last)
            self._must_join = False
            holds_on = self._role.is_cooperative
            self._driver.react(self._machine.rejoin(self._driver.now_ms(), protocols, holding=holds_on))
            self._driver.wake.set()

    async def _give_up_unwanted(self, current: Assigned[Share] | None) -> None:
        """Revoke partitions of unsubscribed topics: a joining member must claim all that it holds.

        The subscription may change once more while the program stops its work.
        """
        while self.current is current and self.owned is not None:
            owned, unwanted = self.owned, self._role.unwanted(self.owned)
            if not unwanted:
                return
            await self._give_up(self._machine.generation_id, unwanted)
            if self.owned is owned:
                self.owned = self._role.without(owned, unwanted)

    async def _give_up(self, generation_id: int, removed: Share) -> None:
        """Stop the work on `removed` in order: its last commits are sent before another member may have it."""
        revocation = self._revocation = _Revocation(removed)
        try:
            with on_return(revocation.returned):
                await notify_revoked(self._listeners, removed, deadline=self._revoke_by())
            revocation.returned()
            await self.commits.flush(self._deadline.left_s(Step.COMMIT) if self.is_given_up else None)
        finally:
            # In a thread, on_revoked may continue while later shares are assigned and lost.
            if self._revocation is revocation:
                self._revocation = None
        self._stats.count(metrics.REVOKED, removed)
        self._broadcast.publish(Revoked(generation_id, removed))

    def _revoke_by(self) -> float | None:
        stop_by = self._deadline.by(Step.WORK) if self.is_given_up else None
        limits = (self._driver.loop_time(self._machine.revoke_by_ms), stop_by)
        return min((limit for limit in limits if limit is not None), default=None)
