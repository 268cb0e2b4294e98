"""A scheduler for Celery beat: run as many as you like, one sends.

    celery beat --scheduler rota.adapters.celery_beat:LeaderScheduler

Configured by the app: `rota_url`, `rota_beat_name` (default: `celery-beat`), `rota_session_timeout_ms`. All keep the
same schedule; those that do not lead tick along and send nothing. So nothing is sent twice for a hand-over. What falls
due between a leader's death and the next election is not sent at all.
"""

from __future__ import annotations

from typing import Any

from celery.beat import PersistentScheduler

from rota.adapters.singleton import SingletonGuard
from rota.protocol.defaults import SESSION_TIMEOUT_MS


class LeaderScheduler(PersistentScheduler):  # type: ignore[misc]  # Celery ships no types
    """Beat's own scheduler, which sends while this process leads."""

    def __init__(self, app: Any, *arguments: Any, **options: Any) -> None:
        self.guard = SingletonGuard(
            app.conf.get("rota_url") or "http://localhost:8080",
            app.conf.get("rota_beat_name") or "celery-beat",
            session_timeout_ms=int(app.conf.get("rota_session_timeout_ms") or SESSION_TIMEOUT_MS),
        )
        self._is_campaigning = False
        super().__init__(app, *arguments, **options)

    def tick(self, *arguments: Any, **options: Any) -> Any:
        """Campaign from the first tick on: Celery also makes schedulers only to look at the schedule."""
        if not self._is_campaigning:
            self._is_campaigning = True
            self.guard.start()
        return super().tick(*arguments, **options)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a task that is due; the schedule has moved on already."""
        if self.guard.is_leader:
            super().apply_entry(entry, producer)

    def close(self) -> None:
        """Let another beat send, then keep the schedule."""
        if self._is_campaigning:
            self._is_campaigning = False
            self.guard.stop()
        super().close()
