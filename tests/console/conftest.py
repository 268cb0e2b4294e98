"""A real server's services in the tests' own event loop, one for each module, and groups made over its HTTP API."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rota.protocol.limits import Limits
from rota.server.bootstrap import open_services
from rota.server.settings import Address, Settings

HOST = "http://rota.test"


@dataclass(frozen=True, slots=True)
class Site:
    """The console with the API beside it, in a namespace of this test's own."""

    http: httpx.AsyncClient
    namespace: str

    def path(self, group_id: str, *more: str) -> str:
        return "/".join((f"/groups/{self.namespace}/{group_id}", *more))

    async def page(self, url: str, **headers: str) -> str:
        """The text of a page that is there."""
        answer = await self.http.get(url, headers=headers)
        assert answer.status_code == httpx.codes.OK, (answer.status_code, answer.text)
        return answer.text

    async def ask(self, group_id: str, call: str, **body: Any) -> dict[str, Any]:
        """A call of the protocol."""
        url = f"/v1/namespaces/{self.namespace}/groups/{group_id}/{call}"
        answered: dict[str, Any] = (await self.http.post(url, json=body)).json()
        return answered

    async def join(self, group_id: str, member_id: str = "", client_id: str = "worker", **more: Any) -> dict[str, Any]:
        """A newcomer with its id, or a member again; answered once the join phase is over, unless a wait is given."""
        body = {"protocol_type": "consumer", "protocols": [{"name": "range"}], "session_timeout_ms": 10_000}
        body |= {"client_id": client_id, "wait_ms": 10_000, **more}
        joined = await self.ask(group_id, "join", **body, member_id=member_id)
        return await self.join(group_id, joined["member_id"], client_id, **more) if not member_id else joined

    async def stable(self, group_id: str, client_id: str = "worker", share: bytes = b"") -> str:
        """A Stable group with one member; its id."""
        import base64

        joined = await self.join(group_id, client_id=client_id)
        member_id, encoded = joined["member_id"], base64.b64encode(share).decode()
        assigned = [{"member_id": member_id, "assignment": encoded}]
        await self.ask(group_id, "sync", member_id=member_id, generation_id=1, assignments=assigned)
        return str(member_id)

    async def send(self, url: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        """A form, as a browser sends it from our own page."""
        return await self.http.post(url, data=fields, headers={"sec-fetch-site": "same-origin", **headers})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _http(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    store = f"sqlite:///{tmp_path_factory.mktemp('console') / 'rota.db'}"
    limits = Limits(initial_rebalance_delay_ms=0)
    settings = Settings(store=store, http=Address("127.0.0.1", 0), shard_count=4, limits=limits)
    async with open_services(settings, HOST) as services:
        await services.coordinator.wait_until_ready()
        transport = httpx.ASGITransport(services.api)
        async with httpx.AsyncClient(transport=transport, base_url=HOST, trust_env=False) as http:
            yield http


@pytest.fixture
def site(_http: httpx.AsyncClient) -> Site:
    return Site(_http, f"test-{uuid.uuid4().hex[:8]}")
