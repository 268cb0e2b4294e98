"""A guarded service with a group and a token for each role, and browsers that sign in with those."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.protocol.limits import Limits
from rota.protocol.messages import Act
from rota.server.access.tokens import write_tokens
from rota.server.bootstrap import Services, open_services
from rota.server.settings import Address, Settings
from rota.storage.access import TokenTable
from tests.console.conftest import HOST, Site

NAMESPACE, GROUP, TOPIC = "team-a", "indexers", "documents"
ROLES_HERE = ("viewer", "member", "operator", "admin")
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


class Doors:
    """What browsers come to."""

    def __init__(self, services: Services, http: httpx.AsyncClient, tokens: dict[str, str], settings: Settings) -> None:
        self.services = services
        self.settings = settings
        self.http = http
        self.tokens = tokens

    @asynccontextmanager
    async def browser(self, role: str = "") -> AsyncIterator[httpx.AsyncClient]:
        """A browser, signed in where a role is named."""
        transport = httpx.ASGITransport(self.services.api)
        async with httpx.AsyncClient(
            transport=transport, base_url=HOST, trust_env=False, headers=SAME_ORIGIN
        ) as browser:
            if role:
                answer = await browser.post("/signin", data={"token": self.tokens[role], "next": "/groups"})
                assert answer.headers["location"] == "/groups", answer.text
            yield browser

    async def store(self, name: str, number: int, **fields: int) -> tuple[str, str]:
        """Keep a token in the store, that may look at the namespace; its id and its text."""
        text = mint(bytes([100 + number]) * RANDOM_BYTES)
        presented = parse(text)
        scope = Rule(f"scope of {name}", (f"token:{name}",), ROLES["viewer"], (NAMESPACE,), ("index*",), ())
        await TokenTable(self.settings.store).add(
            TokenRecord(presented.token_id, name, presented.digest, (scope,), **fields),  # type: ignore[arg-type]
            Act("shell:tests"),
        )
        return presented.token_id, text


@asynccontextmanager
async def guarded(folder: Path, access: str = "", store: str = "") -> AsyncIterator[Doors]:
    """On a store of its own with a group, or on another one as it is."""
    folder.mkdir(exist_ok=True)
    tokens = _tokens(folder / "tokens.json")
    (folder / "access.toml").write_text(access)
    settings = Settings(
        store=store or f"sqlite:///{folder / 'rota.db'}",
        http=Address("127.0.0.1", 0),
        shard_count=4,
        limits=Limits(initial_rebalance_delay_ms=0),
        access_file=folder / "access.toml",
        access_tokens_file=folder / "tokens.json",
    )
    async with open_services(settings, HOST) as services:
        await services.coordinator.wait_until_ready()
        headers = {"authorization": f"Bearer {tokens['operator']}"}
        transport = httpx.ASGITransport(services.api)
        async with httpx.AsyncClient(transport=transport, base_url=HOST, trust_env=False, headers=headers) as http:
            if not store:
                await Site(http, NAMESPACE).stable(GROUP)
                await http.put(f"/v1/namespaces/{NAMESPACE}/topics/{TOPIC}", json={"partitions": 2})
            yield Doors(services, http, tokens, settings)


def _tokens(file: Path) -> dict[str, str]:
    minted = {role: mint(bytes([number]) * RANDOM_BYTES) for number, role in enumerate(ROLES_HERE, 1)}
    records = []
    for role, text in minted.items():
        namespaces = ("*",) if role == "admin" else (NAMESPACE,)
        scope = Rule(f"scope of {role}", (f"token:{role}",), ROLES[role], namespaces)
        presented = parse(text)
        records.append(TokenRecord(presented.token_id, role, presented.digest, (scope,)))
    write_tokens(file, records)
    return minted
