"""The server's public keys, fetched periodically: the only data of the server that checking tokens needs."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from rota.fencing.keys import InvalidKeys, PublicKeys, public_keys

JWKS_PATH = "/.well-known/jwks.json"


class PublishedKeys:
    """Returns the keys when called: `Fence(PublishedKeys("http://localhost:8080"))`. Safe to share between threads.

    Keys are fetched when they are older than `max_age_s`. While the server does not answer, the known keys stay valid:
    checking a token must not depend on it.
    """

    def __init__(
        self,
        url: str,
        *,
        max_age_s: float = 60.0,
        timeout_s: float = 5.0,
        client: httpx.Client | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url.rstrip("/") + JWKS_PATH
        self._max_age_s = max_age_s
        self._client = client or httpx.Client(timeout=timeout_s)
        self._clock = clock
        self._keys: PublicKeys | None = None
        self._asked_at = 0.0

    def __call__(self) -> PublicKeys:
        """Return the keys; raise `InvalidKeys` only if no keys were ever fetched."""
        if self._keys is None or self._clock() - self._asked_at >= self._max_age_s:
            self._fetch()
        assert self._keys is not None
        return self._keys

    def _fetch(self) -> None:
        self._asked_at = self._clock()
        try:
            answer = self._client.get(self._url)
            answer.raise_for_status()
            self._keys = public_keys(answer.json())
        except (httpx.HTTPError, ValueError) as error:
            if self._keys is None:
                raise InvalidKeys(f"no keys from {self._url}: {error}") from error
