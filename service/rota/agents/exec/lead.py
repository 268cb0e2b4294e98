"""`rota lead` and `rota hold`: a command that runs while this process leads an election, or holds a permit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from rota.agents.exec import tree
from rota.agents.exec.ending import GRANT_LOST, GUARDIAN_LOST, exit_unserved, not_granted
from rota.agents.exec.run import Ended, Grant, GuardianLost, Run, beside
from rota.agents.exec.signals import Signals
from rota.agents.exec.stopping import StopTimes
from rota.client import Client, CoordinatorError, Election, MembershipLost, Permit
from rota.client.occasions import Occasions
from rota.client.options import PREEMPT_AFTER_S, STOP_DRAIN_S
from rota.client.term import Term
from rota.protocol.defaults import COMMAND_REBALANCE_TIMEOUT_MS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeadOptions:
    """The command and its conditions. Times are seconds; `wait` is the maximum time to campaign, None for no maximum.

    `drain_timeout` is the time for the command to finish after SIGTERM.
    """

    command: Sequence[str]
    times: StopTimes
    session_timeout: float
    wait: float | None = None
    again: bool = False
    """Campaign again after a loss, instead of ending with 74."""
    group_instance_id: str | None = None
    priority: int = 0
    preempt_after: float | None = PREEMPT_AFTER_S
    permits: int | None = None
    """Hold one of this number of permits, instead of leading."""
    once_per: float | None = None
    """Run the command once per occasion of a schedule with this period, on one of its hosts."""
    drain_timeout: float = STOP_DRAIN_S
    at_most_once: bool = False
    """An occasion counts as done when its command starts, not when the command has ended with 0."""


async def lead(client: Client, name: str, options: LeadOptions) -> int:
    """Campaign, run the command while leading, and leave when all its processes have ended; return the exit code.

    Raises:
        CoordinatorError: The coordinator refuses this candidate for good.
    """
    tree.adopt_orphans()
    election = _candidacy(client, name, options)
    wrapper = _Leading(name, options)
    return await Signals(election.member, options.drain_timeout, lambda: wrapper.runs).run_in(
        election, partial(wrapper.run, election)
    )


def _candidacy(client: Client, name: str, options: LeadOptions) -> Election:
    rebalance_timeout = max(options.session_timeout, COMMAND_REBALANCE_TIMEOUT_MS / 1000)
    if options.permits is not None:
        return client.permits(
            name,
            options.permits,
            session_timeout=options.session_timeout,
            rebalance_timeout=rebalance_timeout,
            group_instance_id=options.group_instance_id,
        )._candidacy
    return client.leader(
        name,
        session_timeout=options.session_timeout,
        rebalance_timeout=rebalance_timeout,
        group_instance_id=options.group_instance_id,
        priority=options.priority,
        preempt_after=options.preempt_after,
        # A static member leaves, too: its command has ended, so other candidates need not wait for its session.
        leave_on_close=True,
    )


class _Leading:
    def __init__(self, name: str, options: LeadOptions) -> None:
        self._name = name
        self._options = options
        self.runs: list[Run] = []
        """The run with a started command; empty while this waits for a term."""
        self._due = time.time()
        """The time at which the schedule started this process."""
        self._occasions = None if options.once_per is None else Occasions(name, options.once_per)

    async def run(self, election: Election, signals: Signals) -> int:
        terms = election.terms()
        while True:
            self.runs.clear()
            # The guardian is started before the term, because during the term every millisecond counts.
            with Run(self._options.times) as run:
                term = await self._next_term(terms)
                if term is None:
                    return self._not_elected(election)
                if not await self._is_due(election):
                    return not_granted(self._name, "the command has run for this occasion")
                try:
                    ended = await self._during(term, run, election)
                except GuardianLost as lost:
                    _log.error("%s: %s", self._name, lost)
                    return GUARDIAN_LOST
            if not ended.stopped and not ended.exit_code:
                await self._note_success(election)
            if not ended.stopped or signals.ended_by:
                return signals.exit_code(ended)
            _log.warning("%s: %s; the command was ended", self._name, term.reason or ended.stopped)
            if not self._options.again:
                return GRANT_LOST
            if term.is_valid:
                # The command was ended at its deadline, which was then renewed. No process runs here, so let another
                # candidate lead.
                await election.resign("its command had to be ended")

    async def _is_due(self, election: Election) -> bool:
        """Return whether to run the command now. One that must not run twice is noted as done before it starts.

        Raises:
            CoordinatorError: The group's progress cannot be read or, before a command of that kind, written.
        """
        if self._occasions is None:
            return True
        if not self._occasions.is_due(await election.member.fetch_offsets([self._occasions.asked()]), self._due):
            return False
        if self._options.at_most_once:
            await election.member.commit([self._occasions.done(self._due)])
        return True

    async def _note_success(self, election: Election) -> None:
        """Note that the command has run for this occasion, so that other hosts do not run it."""
        if self._occasions is None or self._options.at_most_once:
            return
        try:
            await election.member.commit([self._occasions.done(self._due)])
        except CoordinatorError as error:
            _log.error("%s: the command has run, but another host may run it again: %s", self._name, error)

    def _not_elected(self, election: Election) -> int:
        """Return the exit code after the maximum wait."""
        taken = "another candidate leads" if self._options.permits is None else "all permits are held"
        return exit_unserved(self._name, election.member) or not_granted(self._name, taken)

    async def _next_term(self, terms: AsyncIterator[Term]) -> Term | None:
        """Return the next term; None if time runs out."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.wait):
                return await anext(terms, None)
        return None

    async def _during(self, term: Term, run: Run, election: Election) -> Ended:
        """Do one run in one term."""
        valid_until = term.valid_until
        if valid_until is None:
            return Ended(None, term.reason)
        with contextlib.suppress(MembershipLost):
            term._begin()  # An orderly handover waits for the end of the run.
        grant = self._grant(term, election)
        run.start(self._options.command, grant, valid_until)
        self.runs.append(run)
        granted = f"granted permit {term.number}" if isinstance(term, Permit) else "elected"
        _log.info("%s: %s, the fencing token is %d", self._name, granted, grant.fencing_token)
        try:
            async with beside(self._follow(term, run, election)):
                return await run.wait()
        finally:
            term._finish()

    async def _follow(self, term: Term, run: Run, election: Election) -> None:
        """Send every renewal to the guardian, and a higher token to the command."""
        while (valid_until := term.valid_until) is not None and term.is_valid:
            run.renew(valid_until)
            run.update(self._grant(term, election))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.times.look_s):
                    await term.lost.wait()
        reason = term.reason or "deadline"
        if term._is_handed_over():
            run.stop(reason)  # Other candidates lead only after the command has ended.
        else:
            run.lose(reason)

    def _grant(self, term: Term, election: Election) -> Grant:
        token, member_id = term.fencing_token, election.member.member_id
        if isinstance(term, Permit):
            return Grant(self._name, token, member_id, {"ROTA_PERMIT": str(term.number)}, {"permit": term.number})
        return Grant(self._name, token, member_id, {}, {})
