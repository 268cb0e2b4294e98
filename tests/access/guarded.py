"""A service behind its guard, over HTTP and gRPC, with every kind of credential at hand."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
from starlette.types import ASGIApp

from rota.core.access.budgets import Budgets, Share
from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.protocol.limits import Limits
from rota.server.access.authenticator import ServerAuthenticator
from rota.server.access.files import AccessFile
from rota.server.access.guard import Guard
from rota.server.access.issuers import IssuedTokens, ReviewBudget
from rota.server.access.tokens import Tokens, write_tokens
from rota.server.grpc.server import GrpcServer
from rota.server.http.app import HttpApi, create_app
from rota.server.http_server import HttpServer, listen, url_of
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.settings import Address
from rota.server.tls import ServerTls, TlsFiles
from rota.testing.memory import MemoryStore
from tests.access.certificates import Authority, Certificate
from tests.access.issuers import Reviewer, Signer
from tests.grpc.clients import Channel
from tests.http.serving import serving

NAMESPACE, GROUP, TOPIC = "team-a", "billing", "documents"
LIMITS = Limits(initial_rebalance_delay_ms=0)
MANY_REVIEWS = Budgets(token_reviews_per_s=Share(10_000, 10_000))
"""For tests in which a token is reviewed with each call."""
OIDC = "https://login.example"
CLUSTER = "https://kubernetes.default.svc"
REVIEWED = "https://reviewed.example"

RULES = """
[[rules]]
name = "admins"
subjects = ["group:admins", "cn:ops-console"]
actions = ["admin"]

[[rules]]
name = "workers of team-a"
subjects = ["sa:team-a/*", "reviewed:sa:team-a/*", "user:worker", "spiffe://corp/ns/team-a/*"]
actions = ["member"]
namespaces = ["team-a"]

[[issuers]]
issuer = "https://login.example"
audiences = ["rota"]
jwks = "{oidc_keys}"

[[issuers]]
kind = "kubernetes"
issuer = "https://kubernetes.default.svc"
audiences = ["rota"]
jwks = "{cluster_keys}"

[[issuers]]
kind = "kubernetes"
issuer = "https://reviewed.example"
audiences = ["rota"]
prefix = "reviewed"
review = "{review}"
bearer_file = "{reviewers_token}"
"""


@dataclass
class Secrets:
    """A folder with the access file, the tokens' file, and everything that makes credentials."""

    folder: Path
    oidc: Signer = field(default_factory=lambda: Signer(OIDC))
    cluster: Signer = field(default_factory=lambda: Signer(CLUSTER))
    reviewed: Signer = field(default_factory=lambda: Signer(REVIEWED))
    reviewer: Reviewer = field(default_factory=Reviewer)
    records: list[TokenRecord] = field(default_factory=list)
    _minted: int = 0

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder)

    @property
    def access_file(self) -> Path:
        return self.folder / "access.toml"

    @property
    def tokens_file(self) -> Path:
        return self.folder / "tokens.json"

    def write(self, review_url: str = "http://127.0.0.1:9", more: str = "") -> None:
        names = {"oidc_keys": self.oidc, "cluster_keys": self.cluster}
        for name, signer in names.items():
            (self.folder / name).write_text(signer.jwks())
        (self.folder / "reviewers_token").write_text("the-reviewers-own-token\n")
        places = {name: self.folder / name for name in ("oidc_keys", "cluster_keys", "reviewers_token")}
        self.access_file.write_text(more + RULES.format(review=review_url, **places))

    def a_token(self, name: str, role: str = "member", namespace: str = NAMESPACE, **fields: Any) -> str:
        """A new API token; the file holds its record."""
        self._minted += 1
        number = self._minted.to_bytes(8, "big")
        text = mint(number + number.rjust(RANDOM_BYTES - 8, b"s"))
        presented = parse(text)
        scope = Rule(f"scope of {name}", (f"token:{name}",), ROLES[role], (namespace,))
        self.records.append(TokenRecord(presented.token_id, name, presented.digest, (scope,), **fields))
        write_tokens(self.tokens_file, self.records)
        return text

    def revoke(self, name: str) -> None:
        changed = [
            TokenRecord(r.token_id, r.name, r.digest, r.grants, revoked_at_ms=1) if r.name == name else r
            for r in self.records
        ]
        self.records = changed
        write_tokens(self.tokens_file, self.records)


@dataclass
class Service:
    """What a caller reaches."""

    api: HttpApi
    http: httpx.AsyncClient
    server: GrpcServer
    channel: Channel
    secrets: Secrets
    guard: Guard
    coordinator: LocalCoordinator
    tls_port: int
    tls_server: GrpcServer

    @asynccontextmanager
    async def as_certificate(self, certificate: Certificate) -> AsyncIterator[tuple[httpx.AsyncClient, Channel]]:
        """Clients that show a certificate."""
        authority = self.secrets.authority
        url, context = f"https://127.0.0.1:{self.tls_port}", authority.client_context(certificate)
        credentials = authority.channel_credentials(certificate)
        async with httpx.AsyncClient(base_url=url, verify=context, trust_env=False) as http:
            async with grpc.aio.secure_channel(self.tls_server.address, credentials) as channel:
                yield http, channel


async def all_namespaces() -> list[str]:
    """The namespaces of the store, as far as callers ask for them by name."""
    return ["lobby", NAMESPACE, "team-b"]


@asynccontextmanager
async def a_guarded_service(secrets: Secrets, more: str = "", **options: Any) -> AsyncIterator[Service]:
    """The servers look at changed files with each call."""
    async with reviewing(secrets.reviewer) as review_url:
        secrets.write(review_url, more)
        policy = AccessFile(secrets.access_file, look_every_s=0)
        tokens = Tokens(file=secrets.tokens_file, look_every_s=0)
        authenticator = ServerAuthenticator(policy, tokens, IssuedTokens(policy, ReviewBudget(MANY_REVIEWS)))
        guard = Guard(authenticator, LIMITS)
        clock = SystemClock()
        store = MemoryStore(clock.monotonic_ms)
        await store.open(2)
        async with LocalCoordinator(store, shard_count=2, limits=LIMITS, clock=clock, **options) as coordinator:
            await coordinator.wait_until_ready()
            api = create_app(coordinator, LIMITS, ping_seconds=0.05, guard=guard, namespaces=all_namespaces)
            server, tls_server = (GrpcServer(coordinator, LIMITS, guard=guard) for _ in range(2))
            certificate = secrets.authority.issue("rota")
            tls = ServerTls(TlsFiles(certificate.cert, certificate.key, secrets.authority.file))
            await server.start("127.0.0.1")
            await tls_server.start("127.0.0.1", 0, tls.grpc_credentials())
            sweeping = asyncio.create_task(guard.open_work.keep_sweeping())
            async with serving(api) as http, serving_tls(api, tls) as tls_port:
                async with grpc.aio.insecure_channel(server.address) as channel:
                    yield Service(api, http, server, channel, secrets, guard, coordinator, tls_port, tls_server)
                    api.begin_drain()
            await server.stop(0.2)
            await tls_server.stop(0.2)
            sweeping.cancel()
        await authenticator.close()


@asynccontextmanager
async def serving_tls(api: HttpApi, tls: ServerTls) -> AsyncIterator[int]:
    """The port where the API is served with TLS."""
    bound = listen(Address("127.0.0.1", 0))
    server = HttpServer(api, [bound], drain_timeout_ms=2_000, tls=tls.context(), member_calls=api.member_calls)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run_until_stopped())
        try:
            yield bound.getsockname()[1]
        finally:
            server.stop()


@asynccontextmanager
async def reviewing(reviewer: ASGIApp) -> AsyncIterator[str]:
    """The URL of a little server of an issuer."""
    bound = listen(Address("127.0.0.1", 0))
    server = HttpServer(reviewer, [bound], drain_timeout_ms=1_000)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run_until_stopped())
        try:
            yield url_of(bound)
        finally:
            server.stop()


def parked_in(service: Service, namespace: str) -> int:
    """How many calls of a namespace with a quota are parked."""
    meter = service.guard.meters._meters["namespace"].get(namespace)
    return 0 if meter is None else meter.open["max_parked"].total


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def a_join_body(client_id: str = "c") -> dict[str, Any]:
    """A join over HTTP that does not wait."""
    protocols = [{"name": "range", "metadata": b64encode(b"m").decode()}]
    return {
        "protocol_type": "worker",
        "protocols": protocols,
        "session_timeout_ms": 30_000,
        "client_id": client_id,
        "wait_ms": 0,
    }


def in_the_past_ms() -> int:
    return int(time.time() * 1000) - 1_000
