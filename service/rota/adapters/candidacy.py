"""A candidate for leadership in the background of a program that knows no asyncio."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rota.client import sync
from rota.client.errors import MembershipLost
from rota.protocol.defaults import SESSION_TIMEOUT_MS, SETTLE_TIMEOUT_MS

_DECIDED_S = SETTLE_TIMEOUT_MS / 1000
_LOOK_AGAIN_S = 0.02


class Candidacy:
    """Campaigns in a group of type `leader` from `start` to `stop`; leads now and then.

    `on_elected` and `on_lost` are called in a thread of their own, one after the other. Both may be late by what the
    other takes: what must not be done by two looks at `is_leader` itself, which goes by the clock.
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
        self._following: threading.Thread | None = None
        self._leading = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Campaign. Does nothing where it does already."""
        if self._election is not None:
            return
        election = self._client.leader(self._group_id, session_timeout_ms=self._session_timeout_ms)
        self._election = election.__enter__()
        self._following = threading.Thread(target=self._follow, args=(election,), name=self._group_id, daemon=True)
        self._following.start()

    def stop(self) -> None:
        """Stop campaigning; if this candidate leads, another may at once. Does nothing where it does not campaign."""
        election, self._election = self._election, None
        if election is None:
            return
        election.__exit__(None, None, None)
        following, self._following = self._following, None
        if following is not None and following is not threading.current_thread():
            following.join()

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now, by the clock."""
        election = self._election
        return election is not None and election.is_leader

    @property
    def token(self) -> int | None:
        """The fencing token of the term under way."""
        term = self._election.term if self._election is not None else None
        return term.token if term is not None else None

    def wait_decided(self, generation_id: int = -1) -> bool:
        """Return once it is known who leads that generation, or a later one; whether that is this candidate.

        False, too, where it is not known for a long time: nobody is told of a win before it is sure.
        """
        until = time.monotonic() + _DECIDED_S
        while self._election is not None and time.monotonic() < until:
            try:
                decided = self._election.member.wait_assigned(timeout=_DECIDED_S)
            except (MembershipLost, TimeoutError):
                return False
            if decided.generation_id >= generation_id:
                # A term begins a moment after the word that it does.
                return decided.is_leader and self.wait_elected(_DECIDED_S)
            time.sleep(_LOOK_AGAIN_S)
        return False

    def wait_elected(self, timeout: float | None = None) -> bool:
        """Return once this candidate leads, or False after `timeout` seconds."""
        return self._leading.wait(timeout) and self.is_leader

    def _follow(self, election: sync.Election) -> None:
        for term in election.terms():
            self._leading.set()
            if self._on_elected is not None:
                self._on_elected()
            term.lost.wait()
            self._leading.clear()
            if self._on_lost is not None:
                self._on_lost()
