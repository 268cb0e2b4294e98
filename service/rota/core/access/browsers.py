"""Decides which requests a browser may have sent for a page of another site, and which names of a server count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(?::([0-9]{0,5}))?")
_NAME = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_OWN_SITES = frozenset({"same-origin", "none"})
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = ("localhost", "*.localhost")
CLUSTER_NAMES = ("*.svc", "*.cluster.local", "*.internal")
"""Names that the public DNS never answers for: a page cannot have one of its own."""


class Verdict(StrEnum):
    """The verdict on a request; the value is the label of its counter."""

    PASSED = "passed"
    UNPROVEN = "unproven"
    """It passes, and a caller that proves no identity may do nothing with it."""
    MALFORMED_HOST = "malformed_host"
    FOREIGN_HOST = "foreign_host"
    FOREIGN_PAGE = "foreign_page"


REFUSED = frozenset({Verdict.MALFORMED_HOST, Verdict.FOREIGN_HOST, Verdict.FOREIGN_PAGE})


@dataclass(frozen=True, slots=True)
class Provenance:
    """A request's method and the headers that show its origin, each with all of its values."""

    method: str
    hosts: Sequence[str]
    sites: Sequence[str] = ()
    """`Sec-Fetch-Site`."""
    origins: Sequence[str] = ()
    navigates: bool = False
    """A browser loads a top-level document: no other page can read that."""


@dataclass(frozen=True, slots=True)
class Site:
    """The names and origins of a server.

    `demands_proof` is set where a caller without credentials may do nothing, or only what rules for `anonymous` say.
    """

    names: frozenset[str] = frozenset(LOOPBACK_NAMES)
    origins: frozenset[str] = frozenset()
    demands_proof: bool = False
    is_strict: bool = True
    """Refuse names that are not listed. Otherwise they count as doubtful."""
    single_labels: bool = False
    """Accept names without a dot, such as those of a container network."""

    def accepts(self, name: str) -> bool:
        """An address is accepted as well: no DNS answer can turn it into another server's."""
        if "*" in self.names or name in self.names or _is_address(name):
            return True
        if self.single_labels and "." not in name:
            return True
        above = name.split(".")
        return any(f"*.{'.'.join(above[first:])}" in self.names for first in range(1, len(above)))

    def judge(self, asked: Provenance) -> Verdict:
        """The verdict for any route that is not a probe."""
        host = parse_host(asked.hosts)
        if host is None:
            return Verdict.MALFORMED_HOST
        is_known = self.accepts(host[0])
        if not is_known and self.is_strict:
            return Verdict.FOREIGN_HOST
        # A page cannot change `Sec-Fetch-Site`, so it wins over an `Origin` that a proxy's `Host` does not match.
        if asked.origins and all(origin.lower() in self.origins for origin in asked.origins):
            is_foreign = False
        elif asked.sites:
            is_foreign = any(site not in _OWN_SITES for site in asked.sites)
        else:
            is_foreign = any(not self.owns(origin, host) for origin in asked.origins)
        if is_foreign:
            # Writes are always refused, and reads if no credential protects them.
            is_protected = self.demands_proof or (asked.navigates and asked.method == "GET")
            if asked.method not in _READS or not is_protected:
                return Verdict.FOREIGN_PAGE
        return Verdict.UNPROVEN if self.demands_proof and (is_foreign or not is_known) else Verdict.PASSED

    def owns(self, origin: str, host: tuple[str, int | None]) -> bool:
        """An origin is the server's own if it is that of the `Host` header, or listed."""
        if origin.lower() in self.origins:
            return True
        found = _split_origin(origin)
        if found is None:
            return False
        scheme, name, port = found
        return (name, port) == (host[0], _DEFAULT_PORTS[scheme] if host[1] is None else host[1])


def site_of(
    own: Sequence[str],
    allowed: Sequence[str] = (),
    origins: Sequence[str] = (),
    *,
    demands_proof: bool = False,
    beyond_loopback: bool = False,
) -> Site:
    """The site of a server with these names of its own and these names and origins from its operator.

    A server that demands proof accepts any name until its operator lists some: a browser keeps the credentials of one
    name from pages of another.
    """
    cluster = CLUSTER_NAMES if beyond_loopback else ()
    names = {*LOOPBACK_NAMES, *cluster, *(_canonical(name) for name in (*own, *allowed))}
    listed = frozenset(origin.lower().rstrip("/") for origin in origins)
    return Site(frozenset(names), listed, demands_proof, bool(allowed) or not demands_proof, beyond_loopback)


def parse_host(hosts: Sequence[str]) -> tuple[str, int | None] | None:
    """The name and port of exactly one well-formed `Host` header; None for anything else."""
    if len(hosts) != 1:
        return None
    found = _HOST.fullmatch(hosts[0].lower())
    if found is None or int(found[2] or 0) > 65_535:
        return None
    name = _canonical(found[1])
    return (name, int(found[2]) if found[2] else None) if name else None


def parse_names(given: Any) -> Any:
    """`a.example.com,*.example.org`; ValueError for anything that is neither a name nor an address."""
    names = tuple(part.strip().lower() for part in given.split(",") if part.strip()) if type(given) is str else given
    for name in names:
        if not _NAME.fullmatch(name) and not _is_address(name.strip("[]")):
            raise ValueError(f"{name!r} is not a host name: no scheme, no port, `*.` only in front")
    return names


def parse_origins(given: Any) -> Any:
    """`https://a.example.com,https://b.example.com:8443`; ValueError for anything that is not an origin."""
    origins = tuple(part.strip() for part in given.split(",") if part.strip()) if type(given) is str else given
    for origin in origins:
        if _split_origin(origin.rstrip("/")) is None:
            raise ValueError(f"{origin!r} is not an origin, https://HOST[:PORT]")
    return origins


def _split_origin(origin: str) -> tuple[str, str, int] | None:
    """Scheme, name and port; None for `null` and for schemes other than HTTP."""
    scheme, separator, rest = origin.lower().partition("://")
    host = parse_host((rest,)) if separator and scheme in _DEFAULT_PORTS else None
    if host is None:
        return None
    return scheme, host[0], _DEFAULT_PORTS[scheme] if host[1] is None else host[1]


def _canonical(name: str) -> str:
    return name.lower().strip("[]").removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
