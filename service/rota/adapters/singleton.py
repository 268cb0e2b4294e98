"""Of several processes with the same schedule, one runs it: a guard for APScheduler, and for anything with threads."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Protocol, Self, TypeVar

from rota.adapters.candidacy import Candidacy
from rota.client import sync
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

    def only_leader(self, job: Callable[Parameters, Outcome]) -> Callable[Parameters, Outcome | None]:
        """The job, which does nothing unless this process leads when it begins."""

        @functools.wraps(job)
        def guarded(*arguments: Parameters.args, **named: Parameters.kwargs) -> Outcome | None:
            return job(*arguments, **named) if self.is_leader else None

        return guarded

    def _resume(self) -> None:
        for scheduler in self._schedulers:
            if scheduler.running:
                scheduler.resume()

    def _pause(self) -> None:
        for scheduler in self._schedulers:
            if scheduler.running:
                scheduler.pause()
