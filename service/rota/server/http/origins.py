"""Refuses the requests that browsers send for pages of other sites, in front of every route."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from starlette.types import Scope

from rota.core.access.browsers import REFUSED, Provenance, Site, Verdict
from rota.server.http.probes import PROBES
from rota.server.observability.timeline import printable

LOG_EVERY_S = 10.0
_MOST_QUOTED = 100
_READ = (b"host", b"sec-fetch-site", b"origin", b"sec-fetch-mode", b"sec-fetch-dest")
_WHY = {
    Verdict.MALFORMED_HOST: "a request needs exactly one well-formed Host header",
    Verdict.FOREIGN_HOST: "the Host header has a name that is not this server's; --allow-host lists more names",
    Verdict.FOREIGN_PAGE: "a page of another site sent this request; --allow-origin lists more origins",
}
UNPROVEN = "a page of another site, or one with an unlisted Host name, needs credentials"

_log = logging.getLogger(__name__)


class OriginCheck:
    """Judges each request by its headers."""

    def __init__(self, site: Site, refused: Callable[[str], None], probes: frozenset[str] = PROBES) -> None:
        self._site = site
        self._refused = refused
        self._probes = probes
        self._log_at = 0.0

    def accepts(self, host: bytes) -> bool:
        """Whether `judge` lets requests pass that have this one `Host`, and no header of a browser."""
        return self._site.judge(Provenance("POST", [host.decode("latin-1")])) is Verdict.PASSED

    def judge(self, scope: Scope) -> Verdict:
        """Counts and logs refusals. Probes pass whatever name they use, for kubelets use addresses and no name."""
        asked = provenance_of(scope)
        verdict = self._site.judge(asked)
        if scope["path"] in self._probes and asked.method in ("GET", "HEAD"):
            verdict = _of_probe(verdict, scope, asked)
        if verdict in REFUSED:
            self._refused(verdict.value)
            self._report(verdict, asked)
        return verdict

    def _report(self, verdict: Verdict, asked: Provenance) -> None:
        now = time.monotonic()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            shown = {
                "host": _quoted(asked.hosts),
                "origin": _quoted(asked.origins),
                "sec_fetch_site": _quoted(asked.sites),
            }
            _log.warning("a browser's request was refused", extra={"verdict": verdict.value, **shown})


def explain(verdict: Verdict) -> tuple[int, str]:
    """The HTTP status and the detail of a refusal."""
    return 400 if verdict is Verdict.MALFORMED_HOST else 403, _WHY[verdict]


def provenance_of(scope: Scope) -> Provenance:
    """What a request's headers show of its origin."""
    found: dict[bytes, list[str]] = {name: [] for name in _READ}
    for name, value in scope["headers"]:
        if name in found:
            found[name].append(value.decode("latin-1"))
    navigates = found[b"sec-fetch-mode"] == ["navigate"] and found[b"sec-fetch-dest"] == ["document"]
    return Provenance(scope["method"], found[b"host"], found[b"sec-fetch-site"], found[b"origin"], navigates)


def _of_probe(verdict: Verdict, scope: Scope, asked: Provenance) -> Verdict:
    """HTTP/1.0 has no Host header, and load balancers probe by it."""
    if verdict is Verdict.MALFORMED_HOST and (asked.hosts or scope.get("http_version") != "1.0"):
        return verdict
    return Verdict.PASSED


def _quoted(values: Sequence[str]) -> str:
    return printable(", ".join(values)[:_MOST_QUOTED])
