"""Budgets for callers that have not proven an identity, or whose requests have not arrived in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Share:
    """How much one source (`rota.core.access.sources`) may have, and all of them together."""

    per_source: int
    in_all: int


@dataclass(frozen=True, slots=True)
class Budgets:
    """What one server process grants. The annotations say what each counts, and what happens if it is used up."""

    silent_connections: Annotated[
        Share,
        "HTTP and HTTPS connections on which no request has come yet, for 10 s each",
        "the oldest one is closed, unless it is less than a second old",
    ] = Share(512, 2_048)
    handshakes: Annotated[
        Share,
        "TLS handshakes over HTTPS that are under way, for 5 s each; "
        "of one source also connections to the port for peers that have not proven themselves, for 10 s each",
        "the connection of the oldest one is closed",
    ] = Share(64, 256)
    unfinished_bodies: Annotated[Share, "bytes of HTTP bodies that have not arrived in full", "429 `THROTTLED`"] = (
        Share(64 * MIB, 128 * MIB)
    )
    unfinished_messages: Annotated[
        Share,
        "gRPC messages that are received now; each may take `limits.request_max_bytes`",
        "an rpc waits for its turn; messages that take over 2 s are refused with THROTTLED",
    ] = Share(6, 16)
    unproven_messages: Annotated[
        Share, "the same of callers without credentials, where there are rules", "as above"
    ] = Share(2, 6)
    waiting_rpcs: Annotated[
        Share,
        "rpcs that wait for that turn, each with up to 16 KiB received; the same for open health watches",
        "THROTTLED",
    ] = Share(1_000, 4_000)
    token_reviews: Annotated[
        Share, "TokenReviews that a Kubernetes API server is asked for at a time", "429 `THROTTLED`"
    ] = Share(4, 16)
    token_reviews_per_s: Annotated[Share, "TokenReviews that are begun in a second", "429 `THROTTLED`"] = Share(5, 20)
    log_lines_per_s: Annotated[
        Share,
        "log lines about refused callers in a second",
        "the line is left out, and `left_out` of the next one counts it",
    ] = Share(5, 20)


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
