"""A guard that lets one of several processes run a schedule: for APScheduler, and for any program with threads."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Protocol, Self, TypeVar

from rota.client import sync
from rota.client.errors import MembershipLost
from rota.client.occasions import Occasions
from rota.client.options import SESSION_TIMEOUT_S
from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import CANDIDACY_RETRY_CAP_MS, WORK_RETRY_FIRST_MS

Parameters = ParamSpec("Parameters")
Outcome = TypeVar("Outcome")

_log = logging.getLogger(__name__)


class Pausable(Protocol):
    """The methods of a scheduler that the guard needs: APScheduler's, or a similar one."""

    @property
    def running(self) -> bool: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class SingletonGuard:
    """Leads in one process at a time.

        with SingletonGuard("http://localhost:8080", "nightly-jobs") as guard:
            scheduler = BackgroundScheduler()
            scheduler.add_job(guard.only_leader(report), "cron", hour=3)
            scheduler.start(paused=True)
            guard.control(scheduler)

    A guard that the coordinator rejects logs an error and campaigns again, after a pause that grows from a second to a
    minute; for a health check, `failure` and `trouble` say why this process is no candidate now.

    A running job is not interrupted when the leadership is lost. A job that must not overlap with the next leader's
    sends `guard.fencing_token` with each write.
    """

    def __init__(
        self, url: str, name: str, *, namespace: str = "default", session_timeout: float = SESSION_TIMEOUT_S
    ) -> None:
        self._url = url
        self._namespace = namespace
        self._schedulers: list[Pausable] = []
        self._name = name
        self._session_timeout = session_timeout
        self._client: sync.Client | None = None
        self._election: sync.Election | None = None
        self._campaigning: threading.Thread | None = None
        self._changing = threading.Lock()
        """Held while an election is entered, so that `stop` closes each one."""
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        """Notified when a term starts or ends, and at the stop."""
        self._is_in_term = False
        self._rejection: BaseException | None = None
        self._scheduler_failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Campaign until `stop`. A second call has no effect."""
        if self._client is not None:
            return
        self._stopping.clear()
        client = sync.connect(self._url, namespace=self._namespace).__enter__()
        try:
            election = self._begin(client)
        except BaseException:
            client.close()
            raise
        self._client = client
        self._campaigning = threading.Thread(
            target=self._campaign, args=(client, election), name=f"rota candidate {self._name}", daemon=True
        )
        self._campaigning.start()

    def stop(self) -> None:
        """Pause the controlled scheduler, and let another process lead. Never raises."""
        client, self._client = self._client, None
        campaigning, self._campaigning = self._campaigning, None
        with self._changing:
            self._stopping.set()
            election = self._election
        self._notify()
        if client is None:
            return
        self._control(is_leading=False)
        try:
            if election is not None:
                election.close()
            if campaigning is not None and campaigning is not threading.current_thread():
                campaigning.join()
        except Exception as error:
            _log.warning("election %s: stopped, although it had ended: %s", self._name, error)
        client.close()

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now, by the clock."""
        election = self._election
        return election is not None and election.is_leader

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the current term."""
        election = self._election
        term = election.term if election is not None else None
        return term.fencing_token if term is not None else None

    @property
    def failure(self) -> BaseException | None:
        """Why the coordinator rejects this process, or what a scheduler raised in this term; None without an error."""
        election = self._election
        is_member = election is not None and election.valid_until is not None
        return self._scheduler_failure if is_member else self._rejection or self._scheduler_failure

    @property
    def trouble(self) -> str:
        """Why the coordinator does not serve this process now; empty while it does."""
        election = self._election
        return election.trouble if election is not None else ""

    def wait_elected(self, timeout: float | None = None) -> bool:
        """Wait until this process leads; return False after `timeout` seconds, or if it is stopped meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._client is None or (self._is_in_term and self.is_leader), timeout)
            return self._is_in_term and self.is_leader

    def control(self, scheduler: Pausable) -> None:
        """Run a started scheduler while this process leads, and pause it while another does."""
        self._schedulers.append(scheduler)
        if self.is_leader:
            scheduler.resume()
        else:
            scheduler.pause()

    def only_leader(
        self, job: Callable[Parameters, Outcome], *, once_per: float | None = None, name: str = ""
    ) -> Callable[Parameters, Outcome | None]:
        """Wrap a job so that it does nothing unless this process leads when the job starts.

        With `once_per`, the minimum seconds between two occasions of the job's schedule, it also does nothing if the
        job has returned in any process within the last half of that time, even after a hand-over or with different
        clocks. `name` distinguishes the jobs of this guard; the function's own name by default. A job that raises is
        not done. The wrapped job raises a `CoordinatorError` if the group's progress cannot be read, so that the job
        has not run, or cannot be written, so that another process may run it again.
        """
        occasions = self.occasions(name or job.__qualname__, once_per) if once_per is not None else None

        @functools.wraps(job)
        def guarded(*arguments: Parameters.args, **named: Parameters.kwargs) -> Outcome | None:
            if not self.is_leader:
                return None
            if occasions is None:
                return job(*arguments, **named)
            due = time.time()
            if not self.is_due(occasions, due):
                return None
            outcome = job(*arguments, **named)
            self.note_done(occasions, due)
            return outcome

        return guarded

    @staticmethod
    def occasions(name: str, once_per: float) -> Occasions:
        """Return the occasions of one schedule of this guard. Raise `ValueError` if `once_per` is not positive."""
        return Occasions(name, once_per)

    def is_due(self, occasions: Occasions, due: float) -> bool:
        """Return whether this process leads, and the work due at `due` (`time.time()`) is not done. Raise
        `CoordinatorError`.
        """
        election = self._election
        return election is not None and occasions.is_due(election.member.fetch_offsets([occasions.asked()]), due)

    def note_done(self, occasions: Occasions, due: float) -> None:
        """Record that the work due then is done. Raise `CoordinatorError`, such as `MembershipLost`."""
        election = self._election
        if election is None:
            raise MembershipLost("this guard is stopped")
        election.member.commit([occasions.done(due)])

    # --- in the thread ------------------------------------------------------------------------

    def _campaign(self, client: sync.Client, election: sync.Election | None) -> None:
        backoff = Backoff(WORK_RETRY_FIRST_MS, CANDIDACY_RETRY_CAP_MS)
        while not self._stopping.is_set():
            try:
                election = election or self._begin(client)
                if election is not None:
                    self._follow(election, backoff)
                self._rejection = None
            except BaseException as error:
                self._rejection = error
            self._election = election = None
            if not self._stopping.is_set():
                pause_s = backoff.next_ms(0.5 + random.random() / 2) / 1000
                reason = self._rejection or "its election has ended"
                _log.error("election %s: not a candidate: %s; it joins again in %.1f s", self._name, reason, pause_s)
                self._stopping.wait(pause_s)

    def _begin(self, client: sync.Client) -> sync.Election | None:
        """Enter an election; return None if this guard is stopped."""
        with self._changing:
            if self._stopping.is_set():
                return None
            election = client.leader(self._name, session_timeout=self._session_timeout)
            self._election = election.__enter__()
            return self._election

    def _follow(self, election: sync.Election, backoff: Backoff) -> None:
        """Control the schedulers in each term; raise the error that ended the candidacy."""
        try:
            for term in election.terms():
                backoff.reset()
                self._scheduler_failure = None
                self._notify(is_in_term=True)
                self._control(is_leading=True)
                term.lost.wait()
                self._notify()
                self._control(is_leading=False)
        finally:
            self._notify()
            election.__exit__(None, None, None)

    def _notify(self, *, is_in_term: bool = False) -> None:
        with self._changed:
            self._is_in_term = is_in_term
            self._changed.notify_all()

    def _control(self, *, is_leading: bool) -> None:
        """Resume or pause the running schedulers. An exception of one does not end the candidacy."""
        try:
            for scheduler in self._schedulers:
                if scheduler.running and is_leading:
                    scheduler.resume()
                elif scheduler.running:
                    scheduler.pause()
        except BaseException as error:  # This includes sys.exit, which in a thread would end only the thread.
            self._scheduler_failure = error
            _log.exception("election %s: a scheduler raised; the candidacy goes on", self._name)
