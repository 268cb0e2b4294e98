"""A candidate for leadership in the background of a program that knows no asyncio."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rota.client import sync
from rota.client.errors import CoordinatorError, MembershipLost
from rota.client.term import Leadership
from rota.client.threads import LoopIsOver
from rota.membership.backoff import Backoff
from rota.protocol.defaults import CANDIDACY_RETRY_CAP_MS, SESSION_TIMEOUT_MS, SETTLE_TIMEOUT_MS, WORK_RETRY_FIRST_MS

_DECIDED_S = SETTLE_TIMEOUT_MS / 1000
_NEXT_GENERATION_S = 0.02
"""Between two questions of which generation a member is in."""

_log = logging.getLogger(__name__)


class Candidacy:
    """Campaigns in a group of type `leader` from `start` to `stop`; leads now and then.

    `on_elected` and `on_lost` are called in a thread of their own, one after the other. Both may be late by what the
    other takes: what must not be done by two looks at `is_leader` itself, which goes by the clock.

    A candidate that the coordinator rejects for good logs an error and campaigns again, after a pause that grows from a
    second to a minute. A callback that raises is logged, and the candidacy goes on. `failure` has the last of both.
    """

    def __init__(
        self,
        client: sync.Client,
        group_id: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        on_elected: Callable[[], object] | None = None,
        on_lost: Callable[[], object] | None = None,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._session_timeout_ms = session_timeout_ms
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._election: sync.Election | None = None
        self._campaigning: threading.Thread | None = None
        self._changing = threading.Lock()
        """Held while an election begins, so that `stop` closes each one that has begun."""
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        """Notified when an election begins, when a term begins or ends, and at the stop."""
        self._is_in_term = False
        self._rejection: BaseException | None = None
        self._callback_failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Campaign. Does nothing where it does already."""
        if self._campaigning is not None:
            return
        self._stopping.clear()
        election = self._begin()
        self._campaigning = threading.Thread(
            target=self._campaign, args=(election,), name=f"rota candidate {self._group_id}", daemon=True
        )
        self._campaigning.start()

    def stop(self) -> None:
        """Stop campaigning; if this candidate leads, another may at once. Does nothing where it does not campaign.

        Never raises: what goes wrong is logged, and the session ends the candidacy then.
        """
        with self._changing:
            self._stopping.set()
            election = self._election
        self._notify()
        if election is not None:
            self._close(election)
        campaigning, self._campaigning = self._campaigning, None
        if campaigning is not None and campaigning is not threading.current_thread():
            campaigning.join()

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now, by the clock."""
        election = self._election
        return election is not None and election.is_leader

    @property
    def token(self) -> int | None:
        """The fencing token of the term under way."""
        election = self._election
        term = election.term if election is not None else None
        return term.token if term is not None else None

    @property
    def failure(self) -> BaseException | None:
        """Why this candidate was rejected, while it is; or what a callback raised, until the next term."""
        election = self._election
        is_member = election is not None and election.valid_until is not None
        return self._callback_failure if is_member else self._rejection or self._callback_failure

    @property
    def trouble(self) -> str:
        """Why the coordinator does not serve this candidate now; empty while it does."""
        election = self._election
        return election.trouble if election is not None else ""

    @property
    def member(self) -> sync.Member[Leadership] | None:
        """The membership of the candidacy under way."""
        election = self._election
        return election.member if election is not None else None

    def wait_decided(self, generation_id: int = -1) -> bool:
        """Return once it is known who leads that generation, or a later one; whether that is this candidate.

        False, too, where it is not known for a long time: no win is reported before it is certain.

        Raises:
            CoordinatorError: The coordinator rejects this candidate for good.
        """
        until = time.monotonic() + _DECIDED_S
        while self._campaigning is not None and (left_s := until - time.monotonic()) > 0:
            election = self._election
            if election is None:
                if isinstance(self._rejection, CoordinatorError):
                    raise self._rejection
                self._wait(lambda: self._election is not None, left_s)
                continue
            try:
                decided = election.member.wait_assigned(timeout=left_s)
            except (MembershipLost, TimeoutError):
                return False
            if decided.generation_id >= generation_id:
                # A term begins a moment after its generation.
                return decided.is_leader and self.wait_elected(_DECIDED_S)
            self._stopping.wait(_NEXT_GENERATION_S)
        return False

    def wait_elected(self, timeout: float | None = None) -> bool:
        """Return once this candidate leads, or False after `timeout` seconds, and where it is stopped meanwhile."""
        return self._wait(lambda: self._is_in_term and self.is_leader, timeout)

    def _wait(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping.is_set() or is_so(), timeout)
            return is_so()

    def _notify(self, *, is_in_term: bool = False) -> None:
        with self._changed:
            self._is_in_term = is_in_term
            self._changed.notify_all()

    # --- in the thread ------------------------------------------------------------------------

    def _campaign(self, election: sync.Election | None) -> None:
        backoff = Backoff(WORK_RETRY_FIRST_MS, CANDIDACY_RETRY_CAP_MS)
        while election is not None and not self._stopping.is_set():
            try:
                self._follow(election, backoff)
            except BaseException as error:
                self._rejection = error
            else:
                self._rejection = None
            election = self._begin_again(backoff)

    def _begin_again(self, backoff: Backoff) -> sync.Election | None:
        """The next election, after a pause; None once this candidacy is stopped."""
        self._election = None
        while not self._stopping.is_set():
            pause_s = backoff.next_ms(0.5 + random.random() / 2) / 1000
            reason = self._rejection or "its election has ended"
            _log.error("election %s: not a candidate: %s; it joins again in %.1f s", self._group_id, reason, pause_s)
            if self._stopping.wait(pause_s):
                break
            try:
                return self._begin()
            except LoopIsOver:
                _log.error("election %s: not a candidate any more: its client is closed", self._group_id)
                break
            except Exception as error:
                self._rejection = error
        return None

    def _begin(self) -> sync.Election | None:
        """Enter an election; None once this candidacy is stopped."""
        with self._changing:
            if self._stopping.is_set():
                return None
            election = self._client.leader(self._group_id, session_timeout_ms=self._session_timeout_ms)
            self._election = election.__enter__()
        self._notify()
        return self._election

    def _follow(self, election: sync.Election, backoff: Backoff) -> None:
        """Call the callbacks for each term; what ended the candidacy is raised at the end."""
        try:
            for term in election.terms():
                backoff.reset()
                self._callback_failure = None
                self._notify(is_in_term=True)
                self._call(self._on_elected)
                term.lost.wait()
                self._notify()
                self._call(self._on_lost)
        finally:
            self._notify()
            election.__exit__(None, None, None)

    def _call(self, callback: Callable[[], object] | None) -> None:
        if callback is None:
            return
        try:
            callback()
        except BaseException as error:  # Also sys.exit, which in a thread would end nothing but the thread.
            self._callback_failure = error
            _log.exception("election %s: a callback raised; the candidacy goes on", self._group_id)

    def _close(self, election: sync.Election) -> None:
        try:
            election.close()
        except Exception as error:
            _log.warning("election %s: stopped, although it had ended: %s", self._group_id, error)
