"""Asks a Kubernetes API server about tokens (TokenReview): with one client, and within a budget."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from rota.access.budgets import BUDGETS, Budgets
from rota.access.claims import Issuer
from rota.access.sources import source_of
from rota.api.access.identity import ORIGIN
from rota.observability.refusals import log_refusal
from rota.server.access.authenticator import Overloaded, Unanswered
from rota.server.access.key_sets import ask, authorization_of, http_client

_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"

_log = logging.getLogger(__name__)


class ReviewBudget:
    """Reviews under way and begun in a second, by the address that they are asked for, and in all."""

    def __init__(
        self,
        budgets: Budgets = BUDGETS,
        over_budget: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budgets = budgets
        self._over_budget = over_budget
        self._clock = clock
        self._under_way: Counter[str] = Counter()
        self._second = 0
        self._begun: Counter[str] = Counter()
        """Of this second. It holds no more sources than reviews may begin."""

    @contextmanager
    def one(self, source: str) -> Iterator[None]:
        """Count a review as under way; raises `Overloaded` where that is too many."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._begun.clear()
        for name, count in (("token_reviews", self._under_way), ("token_reviews_per_s", self._begun)):
            share = getattr(self._budgets, name)
            if count[source] >= share.per_source or count.total() >= share.in_all:
                self._over_budget(name)
                raise Overloaded("too many tokens are being reviewed")
        self._begun[source] += 1
        self._under_way[source] += 1
        try:
            yield
        finally:
            self._under_way[source] -= 1
            if not self._under_way[source]:
                del self._under_way[source]


class Reviews:
    """The reviews of one issuer."""

    def __init__(self, issuer: Issuer, budget: ReviewBudget) -> None:
        self._issuer = issuer
        self._budget = budget
        self._asking: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._making = asyncio.Lock()
        self._client: httpx.AsyncClient | None = None
        self._client_of: int | None = None

    async def status(self, token: str) -> dict[str, Any]:
        """The review's status; raises `Unanswered`, and `Overloaded` where the budget is used up."""
        asking = self._asking.get(token)
        if asking is None:
            asking = self._asking[token] = asyncio.create_task(self._ask(token))
            asking.add_done_callback(lambda _: self._forget(token))
        return await asyncio.shield(asking)

    async def close(self) -> None:
        """Close the connections to the API server."""
        for task in self._asking.values():
            task.cancel()
        if self._client is not None:
            await self._client.aclose()

    def _forget(self, token: str) -> None:
        task = self._asking.pop(token)
        if not task.cancelled():
            task.exception()  # all that waited for it may be gone

    async def _ask(self, token: str) -> dict[str, Any]:
        with self._budget.one(source_of(ORIGIN.get())):
            try:
                return await self._review(token)
            except Exception as error:
                issuer = self._issuer.issuer
                log_refusal(_log, "no review of a token", issuer, issuer=issuer, why=type(error).__name__)
                raise Unanswered("the API server does not answer") from error

    async def _review(self, token: str) -> dict[str, Any]:
        """The API server also knows of pods and accounts that are gone."""
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": list(self._issuer.audiences)},
        }
        client = await self._newest_client()
        url = self._issuer.review.rstrip("/") + _PATH
        answer = await ask(client, "POST", url, json=asked, headers=authorization_of(self._issuer))
        return dict(answer["status"])

    async def _newest_client(self) -> httpx.AsyncClient:
        """The client, with another one in its place where the file of its authorities has changed."""
        async with self._making:
            version = _version_of(self._issuer.ca_file)
            if self._client is None or version != self._client_of:
                former, self._client = self._client, await http_client(self._issuer)
                self._client_of = version
                if former is not None:
                    await former.aclose()
            return self._client


def _version_of(file: str) -> int:
    """A number that changes with the file."""
    return Path(file).stat().st_mtime_ns if file else 0
