"""What each namespace and each caller takes at this replica, where it has a quota. Every operation asks here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rota.access.known_members import Beats, KnownMembers
from rota.access.meter import Meter
from rota.access.quotas import Quota, Stored, quota_of
from rota.api.access.identity import Policy
from rota.observability.refusals import log_refusal
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, HeartbeatMany, Reply, Request

LOOK_EVERY_MS = 250
"""How often a changed quota is looked for."""
MOST_METERS = 10_000
"""Beyond so many namespaces or callers, those that hold nothing here are forgotten: they begin with a full bucket."""
NAMESPACE, CALLER = "namespace", "caller"
PARKED = ("max_parked",)
WATCH = ("max_watches", "max_parked")
"""A watch is parked for as long as it lasts."""
STREAM = ("max_streams",)

_log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """A meter that an operation asks, with its namespace or caller."""

    scope: str
    name: str
    meter: Meter


class Meters:
    """One meter for each namespace and each caller with a quota, made anew when the quota changes.

    A caller is named by `rota.access.quotas.payer_of`. The caller's own meter is asked first, so that calls that it
    rejects take nothing of the namespace. Refusals are texts; empty where the operation is let through.
    """

    def __init__(self, policy: Policy, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._document = policy.document
        self._known = KnownMembers(limits, self._now_ms())
        self._meters: dict[str, dict[str, Meter]] = {NAMESPACE: {}, CALLER: {}}
        self._namespaces: dict[str, None] = {}
        """Those in which callers with a storage quota have made requests."""
        self._kept: dict[tuple[str, str], list[Asked]] = {}
        """The meters of a caller and a namespace, until any of them is made anew or forgotten."""
        self._look_at_ms = 0
        self.refused: Callable[[str, str], object] = lambda _scope, _quota: None
        """Called for each refusal, with `namespace` or `caller` and the name of the limit."""

    def refusal_of(self, caller: str, request: Request) -> str:
        """Why the request is too much, asked before it is carried out."""
        now_ms = self._now_ms()
        asked = self._asked(caller, request.namespace, now_ms)
        if not asked:
            return ""
        if isinstance(request, Heartbeat | HeartbeatMany):
            return self._refusal_of_heartbeats(asked, caller, request, now_ms)
        return self._first(asked, caller, lambda meter: meter.refusal_of(caller, request, now_ms))

    def refusal_of_answered(self, caller: str, request: Beats, reply: Reply) -> str:
        """The same for heartbeats that were answered from memory."""
        now_ms = self._now_ms()
        if not self._has_quotas(now_ms):
            return ""
        strangers, in_time = self._known.judge(caller, request, reply, now_ms)
        if in_time:
            return ""
        asked = self._asked(caller, request.namespace, now_ms)
        if not strangers:
            return self._first(asked, caller, lambda meter: meter.refusal_of_call(caller, now_ms))
        refusal = self._first(asked, caller, lambda meter: meter.refusal_of_strangers(caller, now_ms))
        self._count_strangers(asked, caller, 0 if refusal else strangers, now_ms)
        return refusal

    def settle(self, caller: str, request: Request, reply: Reply) -> None:
        """Count heartbeats that no member has sent, which the answer to a request shows."""
        now_ms = self._now_ms()
        if self._has_quotas(now_ms) and (strangers := self._known.settle(caller, request, reply)):
            self._count_strangers(self._asked(caller, request.namespace, now_ms), caller, strangers, now_ms)

    def refusal_of_call(self, caller: str, namespace: str = "") -> str:
        """The same for an operation that is no request of the protocol; without a namespace where it is about none."""
        now_ms = self._now_ms()
        asked = self._asked(caller, namespace, now_ms)
        return self._first(asked, caller, lambda meter: meter.refusal_of_call(caller, now_ms))

    def refusal_of_opening(self, caller: str, kind: tuple[str, ...], namespace: str = "") -> str:
        """The same for something that stays open, and is a request as well."""
        now_ms = self._now_ms()
        asked = self._asked(caller, namespace, now_ms)
        return self._first(
            asked, caller, lambda m: m.refusal_of_call(caller, now_ms) or m.refusal_of_opening(caller, *kind)
        )

    @contextmanager
    def holding(self, caller: str, kind: tuple[str, ...], namespace: str = "") -> Iterator[None]:
        """Count one more as open for as long as the block runs."""
        places = [each.meter.open[name] for each in self._asked(caller, namespace, self._now_ms()) for name in kind]
        for each in places:
            each.take(caller)
        try:
            yield
        finally:
            for each in places:
                each.take(caller, -1)

    def parked(self, namespace: str) -> int:
        """How many calls of a namespace are parked here, as far as they are counted."""
        meter = self._meters[NAMESPACE].get(namespace)
        return meter.open["max_parked"].total if meter is not None else 0

    def to_look_at(self) -> dict[str, bool]:
        """Namespaces that the store must be read for, and whether their bytes count, which takes longer."""
        counted = {name: meter.quota for name, meter in self._meters[NAMESPACE].items() if meter.quota.counts_stored}
        counts_bytes = any(each.quota.max_stored_bytes is not None for each in self._counting_callers())
        of_callers = dict.fromkeys(self._namespaces, counts_bytes)
        return of_callers | {
            name: of_callers.get(name, False) or quota.max_stored_bytes is not None for name, quota in counted.items()
        }

    def look(self, namespace: str, stored: Stored) -> None:
        """Take in what a namespace has in the store."""
        if (own := self._meters[NAMESPACE].get(namespace)) is not None:
            own.look(namespace, stored)
        have_some = [meter.look(namespace, stored) for meter in self._counting_callers()]
        if not any(have_some):  # it is read again once a caller asks for it
            self._namespaces.pop(namespace, None)

    # --- inside ------------------------------------------------------------------------------------

    def _counting_callers(self) -> list[Meter]:
        return [meter for meter in self._meters[CALLER].values() if meter.quota.counts_stored]

    def _refusal_of_heartbeats(self, asked: Sequence[Asked], caller: str, request: Beats, now_ms: int) -> str:
        in_time = self._known.note(caller, request, now_ms)
        if not self._known.knows_all(caller, request):
            return self._first(asked, caller, lambda meter: meter.refusal_of_strangers(caller, now_ms))
        return "" if in_time else self._first(asked, caller, lambda meter: meter.refusal_of_call(caller, now_ms))

    @staticmethod
    def _count_strangers(asked: Sequence[Asked], caller: str, heartbeats: int, now_ms: int) -> None:
        for each in asked if heartbeats else ():
            each.meter.count_strangers(caller, heartbeats, now_ms)

    def _first(self, asked: Sequence[Asked], caller: str, refusal_of: Callable[[Meter], str]) -> str:
        for scope, name, meter in asked:
            limit = refusal_of(meter)
            if limit:
                return self._refuse(scope, name, meter, limit, caller)
        return ""

    def _refuse(self, scope: str, name: str, meter: Meter, limit: str, caller: str) -> str:
        self.refused(scope, limit)
        log_refusal(_log, "over quota", f"{scope} {name}", scope=scope, of=name, quota=limit, caller=caller)
        return f"the quota of {scope} {name}: {meter.quota.explain(limit)}"

    def _has_quotas(self, now_ms: int) -> bool:
        if now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + LOOK_EVERY_MS
            if self._policy.document is not self._document:
                self._document = self._policy.document
                self._kept.clear()
        return bool(self._document.quotas or self._document.caller_quotas)

    def _asked(self, caller: str, namespace: str, now_ms: int) -> Sequence[Asked]:
        if not self._has_quotas(now_ms):
            return ()
        known = self._kept.get((caller, namespace))
        return known if known is not None else self._look_up(caller, namespace, now_ms)

    def _look_up(self, caller: str, namespace: str, now_ms: int) -> list[Asked]:
        asked, keeps = list[Asked](), True
        if self._document.caller_quotas and (quota := quota_of(self._document.caller_quotas, caller)) is not None:
            asked.append(Asked(CALLER, caller, self._meter(CALLER, caller, quota, now_ms)))
            if quota.counts_stored and namespace:
                keeps = False  # each call has the store read for the namespace
                if len(self._namespaces) < MOST_METERS:
                    self._namespaces[namespace] = None
        if namespace and self._document.quotas and (quota := quota_of(self._document.quotas, namespace)) is not None:
            asked.append(Asked(NAMESPACE, namespace, self._meter(NAMESPACE, namespace, quota, now_ms)))
        if keeps:
            if len(self._kept) >= MOST_METERS:
                self._kept.clear()
            self._kept[caller, namespace] = asked
        return asked

    def _meter(self, scope: str, name: str, quota: Quota, now_ms: int) -> Meter:
        meters = self._meters[scope]
        meter = meters.get(name)
        if meter is None or meter.quota != quota:
            if len(meters) >= MOST_METERS:
                self._kept.clear()
                meters = self._meters[scope] = {name: each for name, each in meters.items() if not each.is_idle}
            former, payer = meter, name if scope == CALLER else ""
            meter = meters[name] = Meter(quota, now_ms, payer, former.open if former is not None else None)
        return meter

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
