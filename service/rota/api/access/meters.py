"""What each namespace takes at this replica, where it has a quota."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rota.access.quotas import Meter, Stored, Taken, quota_of
from rota.api.access.identity import Policy
from rota.protocol.limits import Limits
from rota.protocol.messages import Request

LOOK_EVERY_MS = 250
"""How often a changed quota is looked for."""
MOST_METERS = 10_000
"""Beyond so many namespaces, those that hold nothing here are forgotten: they begin with a full bucket again."""


class Meters:
    """One meter a namespace, made when the namespace is first heard of, and again when its quota changes."""

    def __init__(self, policy: Policy, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._limits = limits
        self._clock = clock
        self._by_namespace: dict[str, Meter] = {}
        self._quotas = policy.document.quotas
        self._look_at_ms = 0

    def refusal_of(self, request: Request) -> str:
        """Why the request is too much for its namespace; empty where it is not."""
        now_ms = self._now_ms()
        meter = self._meter(request.namespace, now_ms)
        return meter.refusal_of(request, now_ms) if meter is not None else ""

    def refusal_of_watch(self, namespace: str) -> str:
        """The same for following a group."""
        now_ms = self._now_ms()
        meter = self._meter(namespace, now_ms)
        return meter.refusal_of_watch(now_ms) if meter is not None else ""

    @contextmanager
    def parking(self, namespace: str) -> Iterator[None]:
        """Count one more as parked for as long as it is under way."""
        meter = self._by_namespace.get(namespace)
        if meter is None:
            yield
            return
        meter.parked += 1
        try:
            yield
        finally:
            meter.parked -= 1

    def parked(self, namespace: str) -> int:
        """How many calls of a namespace are parked here, as far as anybody counts them."""
        meter = self._by_namespace.get(namespace)
        return meter.parked if meter is not None else 0

    def taken(self, namespace: str) -> Taken:
        """What a namespace takes here, as far as anybody counts it."""
        meter = self._by_namespace.get(namespace)
        return meter.taken(self._now_ms()) if meter is not None else Taken()

    def to_look_at(self) -> list[str]:
        """Namespaces whose quota is about what the store has."""
        return [name for name, meter in self._by_namespace.items() if meter.quota.counts_stored]

    def look(self, namespace: str, stored: Stored) -> None:
        """Take in what a namespace has in the store."""
        meter = self._by_namespace.get(namespace)
        if meter is not None:
            meter.look(stored)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _meter(self, namespace: str, now_ms: int) -> Meter | None:
        if now_ms >= self._look_at_ms:
            self._quotas, self._look_at_ms = self._policy.document.quotas, now_ms + LOOK_EVERY_MS
        quota = quota_of(self._quotas, namespace) if self._quotas else None
        if quota is None:
            return None
        meter = self._by_namespace.get(namespace)
        if meter is None or meter.quota != quota:
            if len(self._by_namespace) >= MOST_METERS:
                self._by_namespace = {name: each for name, each in self._by_namespace.items() if each.parked}
            meter = self._by_namespace[namespace] = Meter(quota, self._limits, now_ms)
        return meter
