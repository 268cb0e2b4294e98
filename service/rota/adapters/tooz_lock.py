"""A lock of tooz, as an election: the leader holds it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tooz
from tooz import coordination, locking

from rota.adapters.candidacy import Candidacy
from rota.client.errors import CoordinatorError, CoordinatorUnreachable


class RotaLock(locking.Lock):
    """Held while its candidate leads. `token` is the fencing token, which no other driver of tooz has."""

    def __init__(self, name: bytes, new_candidacy: Callable[[], Candidacy], in_use: set[RotaLock]) -> None:
        """It is in `in_use` while it is held or waited for."""
        super().__init__(name)
        self._new_candidacy = new_candidacy
        self._in_use = in_use
        self._candidacy: Candidacy | None = None
        self._taken = threading.Lock()
        """Held by the thread that has this object's candidacy, so that its threads exclude each other."""

    @property
    def acquired(self) -> bool:
        """Whether it is held now, by the clock."""
        return self._candidacy is not None and self._candidacy.is_leader

    @property
    def token(self) -> int | None:
        """Give it to what the lock guards, and have older ones refused there."""
        return self._candidacy.token if self._candidacy is not None else None

    def acquire(self, blocking: bool | float = True, shared: bool = False, timeout: float | None = None) -> bool:
        """`blocking` may be a number of seconds, as with tooz's other drivers."""
        if shared:
            raise tooz.NotImplemented("locks are exclusive")
        waits_s = timeout if blocking is True else float(blocking)
        if not self._taken.acquire(blocking=waits_s != 0, timeout=waits_s or -1):
            return False
        self._in_use.add(self)
        candidacy = self._new_candidacy()
        try:
            with translated():
                candidacy.start()
                won = candidacy.wait_elected(waits_s) if waits_s != 0 else candidacy.wait_decided()
        except BaseException:
            self._give_up(candidacy)
            raise
        if won:
            self._candidacy = candidacy
        else:
            self._give_up(candidacy)
        return won

    def release(self) -> bool:
        candidacy, self._candidacy = self._candidacy, None
        if candidacy is None:
            return False
        held = candidacy.is_leader
        self._give_up(candidacy)
        return held

    def _give_up(self, candidacy: Candidacy) -> None:
        candidacy.stop()
        self._in_use.discard(self)
        self._taken.release()

    def is_still_owner(self) -> bool:
        return self.acquired


@contextmanager
def translated() -> Iterator[None]:
    """Our errors become tooz's in this block."""
    try:
        yield
    except CoordinatorUnreachable as error:
        raise coordination.ToozConnectionError(str(error)) from error
    except CoordinatorError as error:
        raise tooz.ToozError(str(error)) from error
