"""A scheduler for Celery beat: of any number of beats, one sends.

    celery beat --scheduler rota.adapters.celery_beat:LeaderScheduler

The app's settings are `rota_url`, `rota_beat_name` (default: `celery-beat`), `rota_session_timeout` in seconds, and
`rota_once_per`, a dictionary from the names of entries to the minimum seconds between two of their occasions. All beats
keep the same schedule; only the leader sends. Entries that are due between a leader's death and the next election are
not sent. An entry in `rota_once_per` is noted as sent before it is sent, so that two beats with different clocks send
it once, even if one takes over from the other meanwhile.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery.beat import PersistentScheduler

from rota.adapters.singleton import SingletonGuard
from rota.client.errors import CoordinatorError
from rota.client.options import SESSION_TIMEOUT_S

_log = logging.getLogger(__name__)


class LeaderScheduler(PersistentScheduler):  # type: ignore[misc]  # Celery ships no types
    """Beat's own scheduler, which sends while this process leads."""

    def __init__(self, app: Any, *arguments: Any, **options: Any) -> None:
        self.guard = SingletonGuard(
            app.conf.get("rota_url") or "http://localhost:8080",
            app.conf.get("rota_beat_name") or "celery-beat",
            session_timeout=app.conf.get("rota_session_timeout") or SESSION_TIMEOUT_S,
        )
        self._is_campaigning = False
        self._occasions = {
            name: self.guard.occasions(name, once_per)
            for name, once_per in (app.conf.get("rota_once_per") or {}).items()
        }
        super().__init__(app, *arguments, **options)

    def tick(self, *arguments: Any, **options: Any) -> Any:
        """Campaign from the first tick on, because Celery also creates schedulers only to read the schedule."""
        if not self._is_campaigning:
            self._is_campaigning = True
            self.guard.start()
        return super().tick(*arguments, **options)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a task that is due; the schedule has already advanced."""
        if self.guard.is_leader and self._is_first(entry.name):
            super().apply_entry(entry, producer)

    def _is_first(self, name: str) -> bool:
        """Return whether no beat has sent the entry for this occasion; False if its occasions cannot be read."""
        occasions, due = self._occasions.get(name), time.time()
        if occasions is None:
            return True
        try:
            if not self.guard.is_due(occasions, due):
                return False
            self.guard.note_done(occasions, due)
        except CoordinatorError as error:
            _log.error("entry %s was not sent: its occasion could not be noted: %s", name, error)
            return False
        return True

    def close(self) -> None:
        """Let another beat send, then save the schedule."""
        if self._is_campaigning:
            self._is_campaigning = False
            self.guard.stop()
        super().close()
