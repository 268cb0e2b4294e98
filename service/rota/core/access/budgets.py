"""Budgets for what callers cost before they are known, or before they have finished to ask: one table of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Share:
    """How much one source (`rota.core.access.sources`) may have, and all of them together."""

    per_source: int
    in_all: int


@dataclass(frozen=True, slots=True)
class Budgets:
    """What one server process grants. Where a budget is used up, the metadata of each field says what happens."""

    silent_connections: Share = field(
        default=Share(512, 2_048),
        metadata={
            "what": "HTTP and HTTPS connections on which no request has come yet, for 10 s each",
            "then": "the oldest one is closed, unless it is less than a second old",
        },
    )
    handshakes: Share = field(
        default=Share(64, 256),
        metadata={
            "what": "TLS handshakes over HTTPS that are under way, for 5 s each; "
            "of one source also connections to the port for peers that have not proven themselves, for 10 s each",
            "then": "the connection of the oldest one is closed",
        },
    )
    unfinished_bodies: Share = field(
        default=Share(64 * MIB, 128 * MIB),
        metadata={"what": "bytes of HTTP bodies that have not arrived in full", "then": "429 `THROTTLED`"},
    )
    unfinished_messages: Share = field(
        default=Share(6, 16),
        metadata={
            "what": "gRPC messages that are received now; each may take `limits.request_max_bytes`",
            "then": "an rpc waits for its turn; messages that take over 2 s are refused with THROTTLED",
        },
    )
    unproven_messages: Share = field(
        default=Share(2, 6),
        metadata={
            "what": "the same of callers without credentials, where there are rules",
            "then": "as above",
        },
    )
    waiting_rpcs: Share = field(
        default=Share(1_000, 4_000),
        metadata={
            "what": "rpcs that wait for that turn, each with up to 16 KiB received; the same for open health watches",
            "then": "THROTTLED",
        },
    )
    token_reviews: Share = field(
        default=Share(4, 16),
        metadata={
            "what": "TokenReviews that a Kubernetes API server is asked for at a time",
            "then": "429 `THROTTLED`",
        },
    )
    token_reviews_per_s: Share = field(
        default=Share(5, 20),
        metadata={"what": "TokenReviews that are begun in a second", "then": "429 `THROTTLED`"},
    )
    log_lines_per_s: Share = field(
        default=Share(5, 20),
        metadata={
            "what": "log lines about refused callers in a second",
            "then": "the line is left out, and `left_out` of the next one counts it",
        },
    )


class Places:
    """The places that each source (`rota.core.access.sources`) has taken; a share bounds them."""

    def __init__(self, most: Share, refused: Callable[[], object]) -> None:
        """`refused` is called each time that there is no place."""
        self._most = most
        self._refused = refused
        self.taken = Counter[str]()

    def take(self, source: str, refusal: Callable[[], Exception]) -> None:
        """Take a place; raises the refusal if there is none."""
        if self.taken[source] >= self._most.per_source or self.taken.total() >= self._most.in_all:
            self._refused()
            raise refusal()
        self.taken[source] += 1

    @contextmanager
    def one(self, source: str, refusal: Callable[[], Exception]) -> Iterator[None]:
        """Take a place while the block runs."""
        self.take(source, refusal)
        try:
            yield
        finally:
            self.taken[source] -= 1
            if not self.taken[source]:
                del self.taken[source]


BUDGETS = Budgets()
"""The defaults."""
