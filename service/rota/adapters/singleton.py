"""Of several processes with the same schedule, one runs it: a guard for APScheduler, and for anything with threads."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import ParamSpec, Protocol, Self, TypeVar

from rota.adapters.candidacy import Candidacy
from rota.client import sync
from rota.client.errors import MembershipLost
from rota.client.occasions import Occasions
from rota.protocol.defaults import SESSION_TIMEOUT_MS

Parameters = ParamSpec("Parameters")
Outcome = TypeVar("Outcome")

_log = logging.getLogger(__name__)


class Pausable(Protocol):
    """What the guard asks of a scheduler: APScheduler's, or one that looks like it."""

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

    A guard that the coordinator rejects logs an error and campaigns again; `failure` and `trouble` say why this process
    is not a candidate now, for a health check.

    A job that has begun is not interrupted when the leadership is lost. One that must not overlap with the next
    leader's sends `guard.token` with each write.
    """

    def __init__(
        self, url: str, name: str, *, namespace: str = "default", session_timeout_ms: int = SESSION_TIMEOUT_MS
    ) -> None:
        self._url = url
        self._namespace = namespace
        self._schedulers: list[Pausable] = []
        self._name = name
        self._session_timeout_ms = session_timeout_ms
        self._client: sync.Client | None = None
        self._candidacy: Candidacy | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Campaign, until `stop`. Does nothing where it does already."""
        if self._client is not None:
            return
        self._client = sync.connect(self._url, namespace=self._namespace).__enter__()
        self._candidacy = Candidacy(
            self._client,
            self._name,
            session_timeout_ms=self._session_timeout_ms,
            on_elected=self._resume,
            on_lost=self._pause,
        )
        self._candidacy.start()

    def stop(self) -> None:
        """Pause the controlled scheduler, and let another process lead. Never raises."""
        try:
            self._pause()
        except Exception:
            _log.exception("a scheduler of %s could not be paused", self._name)
        candidacy, self._candidacy = self._candidacy, None
        if candidacy is not None:
            candidacy.stop()
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.__exit__(None, None, None)
        except Exception as error:
            _log.warning("the client of %s was not closed in order: %s", self._name, error)

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now, by the clock."""
        return self._candidacy is not None and self._candidacy.is_leader

    @property
    def token(self) -> int | None:
        """The fencing token of the term under way."""
        return self._candidacy.token if self._candidacy is not None else None

    @property
    def failure(self) -> BaseException | None:
        """Why the coordinator rejected this process, or what a scheduler raised; None while all is well."""
        return self._candidacy.failure if self._candidacy is not None else None

    @property
    def trouble(self) -> str:
        """Why the coordinator does not serve this process now; empty while it does."""
        return self._candidacy.trouble if self._candidacy is not None else ""

    def wait_elected(self, timeout: float | None = None) -> bool:
        """Return once this process leads, or False after `timeout` seconds."""
        return self._candidacy is not None and self._candidacy.wait_elected(timeout)

    def control(self, scheduler: Pausable) -> None:
        """Have a started scheduler run while this process leads, and pause while another does."""
        self._schedulers.append(scheduler)
        if self.is_leader:
            scheduler.resume()
        else:
            scheduler.pause()

    def only_leader(
        self, job: Callable[Parameters, Outcome], *, once_per: timedelta | None = None, name: str = ""
    ) -> Callable[Parameters, Outcome | None]:
        """Wrap a job so that it does nothing unless this process leads when the job starts.

        With `once_per`, the shortest time between two occasions of the job's schedule, it also does nothing if the job
        has returned in any process since less than half of that time: also after a hand-over, and whatever the clocks
        of two hosts say. `name` distinguishes the jobs of this guard; the function's own name by default. A job that
        raises has not been done. A `CoordinatorError` comes out of the wrapped job if the group's progress cannot be
        read, so that the job has not run, or written, so that another process may run it again.
        """
        occasions = self.occasions(name or job.__qualname__, once_per) if once_per is not None else None

        @functools.wraps(job)
        def guarded(*arguments: Parameters.args, **named: Parameters.kwargs) -> Outcome | None:
            if not self.is_leader:
                return None
            if occasions is None:
                return job(*arguments, **named)
            due_ms = int(time.time() * 1_000)
            if not self.is_due(occasions, due_ms):
                return None
            outcome = job(*arguments, **named)
            self.note_done(occasions, due_ms)
            return outcome

        return guarded

    @staticmethod
    def occasions(name: str, once_per: timedelta) -> Occasions:
        """The occasions of one schedule of this guard. Raise `ValueError` if `once_per` is not positive."""
        return Occasions(name, int(once_per.total_seconds() * 1_000))

    def is_due(self, occasions: Occasions, due_ms: int) -> bool:
        """Whether this process leads, and work that is due at `due_ms` has not been done. Raise `CoordinatorError`."""
        member = self._candidacy.member if self._candidacy is not None else None
        return member is not None and occasions.is_due(member.fetch_offsets([occasions.asked()]), due_ms)

    def note_done(self, occasions: Occasions, due_ms: int) -> None:
        """Record that the work that was due then is done. Raise `CoordinatorError`, such as `MembershipLost`."""
        member = self._candidacy.member if self._candidacy is not None else None
        if member is None:
            raise MembershipLost("this guard is stopped")
        member.commit([occasions.done(due_ms)])

    def _resume(self) -> None:
        for scheduler in self._schedulers:
            if scheduler.running:
                scheduler.resume()

    def _pause(self) -> None:
        for scheduler in self._schedulers:
            if scheduler.running:
                scheduler.pause()
