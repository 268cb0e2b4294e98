"""Answers of issuers that are nearly right: discovery documents, key sets, and reviews of a Kubernetes API server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from rota.core.access.budgets import Budgets, Share
from rota.core.access.document import AccessDocument, Issuer
from rota.server.access.authenticator import Refused
from rota.server.access.issuers import Authority, IssuedTokens, ReviewBudget
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import as_json, mutated, mutated_document

AUDIENCE, ACCOUNT = "rota", "system:serviceaccount:team-a:worker"
_POD = "authentication.kubernetes.io/pod-name"
_MANY = Share(10**9, 10**9)


class Policy:
    """A policy with one issuer."""

    def __init__(self, issuer: Issuer) -> None:
        self.document = AccessDocument(issuers=(issuer,))


class IssuerFuzzer:
    """Has tokens checked by issuers that answer anything."""

    cpu_s = staticmethod(time.thread_time)

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._random = Random(0)
        key = ec.derive_private_key(20_261_123, ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
        self._keys = {"keys": [{**public, "kid": "k1", "use": "sig", "alg": "ES256"}]}
        runner.run(self._start())
        claims = {"iss": self._url, "aud": AUDIENCE, "exp": 2**33}
        self._token = jwt.encode(claims, key, algorithm="ES256", headers={"kid": "k1"})
        self._reviewed = Issuer(self._url, (AUDIENCE,), "kubernetes", review=self._url)
        budget = ReviewBudget(Budgets(token_reviews=_MANY, token_reviews_per_s=_MANY))
        self._reviews = IssuedTokens(Policy(self._reviewed), budget)

    async def _start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def end(self) -> None:
        self._reviews.close()
        self._listener.close()

    def play(self, random: Random) -> None:
        self._random = random
        self._runner.run(random.choice((self._fetch, self._review, self._review))())

    async def _fetch(self) -> None:
        try:
            key = await Authority(Issuer(self._url, (AUDIENCE,)), ReviewBudget()).key("k1")
        except Refused:
            return
        if not isinstance(key, jwt.PyJWK):
            raise Broken(f"{key!r}")

    async def _review(self) -> None:
        try:
            caller = await self._reviews.caller_of(self._token)
        except Refused:
            return
        if caller.subject != "sa:team-a/worker":
            named = caller.subject.removeprefix("sa:")
            if type(caller.subject) is not str or not all(named.partition("/")):
                raise Broken(f"{caller!r}")
        if caller.pod is not None and type(caller.pod.name) is not str:
            raise Broken(f"{caller!r}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = self._sent(self._right(head))
        line = self._random.choice((b"200 OK",) * 8 + (b"302 Found", b"500 X", b"204 X"))
        answer = b"HTTP/1.1 " + line + b"\r\ncontent-length: %d\r\nlocation: x\r\n\r\n" % len(body) + body
        writer.write(mutated(self._random, answer) if self._random.random() < 0.2 else answer)
        await writer.drain()
        writer.close()

    def _right(self, head: bytes) -> Any:
        if head.startswith(b"POST"):
            user = {"username": ACCOUNT, "extra": {_POD: ["pod-1"]}}
            return {"status": {"authenticated": True, "audiences": [AUDIENCE], "user": user}}
        if b"openid-configuration" in head:
            return {"jwks_uri": f"{self._url}/keys"}
        return self._keys

    def _sent(self, document: Any) -> bytes:
        if self._random.random() < 0.7:
            document = mutated_document(self._random, document)
        data = as_json(document)
        return mutated(self._random, data) if self._random.random() < 0.2 else data


@contextmanager
def opened() -> Iterator[IssuerFuzzer]:
    with asyncio.Runner() as runner:
        fuzzer = IssuerFuzzer(runner)
        yield fuzzer
        runner.run(fuzzer.end())


ISSUERS = Target("issuers", "answers of issuers: discovery, key sets, reviews of Kubernetes", opened)
