"""A port for probes alone, for kubelets without credentials; and which headers of a proxy a server trusts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rota.core.access.rules import ROLES, Rule
from rota.core.access.tokens import RANDOM_BYTES, TokenRecord, mint, parse
from rota.server.access.tokens import write_tokens
from rota.server.lifecycle import serve
from rota.server.settings import Address, Settings
from tests.access.certificates import Authority
from tests.support.ports import free_port


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[asyncio.Event]:
    """A server as `rota serve` runs it; setting the event begins its drain."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(settings, stop=stop))
        try:
            yield stop
        finally:
            stop.set()


def strict(folder: Path, authority: Authority, probes: Address, **more: int) -> Settings:
    """Settings of a server for clients with certificates."""
    certificate = authority.issue("rota")
    return Settings(
        store=f"sqlite:///{folder / 'rota.db'}",
        http=Address("127.0.0.1", free_port()),
        probes=probes,
        tls_cert_file=certificate.cert,
        tls_key_file=certificate.key,
        tls_client_ca_file=authority.file,
        shard_count=2,
        **more,  # type: ignore[arg-type]
    )


async def test_probes_are_answered_in_the_clear_beside_mutual_tls(tmp_path: Path) -> None:
    authority, probes = Authority(tmp_path), Address("127.0.0.1", free_port())
    settings = strict(tmp_path, authority, probes)

    async with served(settings), httpx.AsyncClient(base_url=f"http://{probes}", trust_env=False) as kubelet:
        await until_status(kubelet, "/readyz", 200)
        found = {path: (await kubelet.get(path)).status_code for path in ("/healthz", "/metrics", "/v1/whoami", "/")}
        posted = await kubelet.post("/v1/namespaces/default/groups/g/join", json={})
        async with httpx.AsyncClient(verify=authority.client_context(), trust_env=False) as stranger:
            with pytest.raises(httpx.TransportError):
                await stranger.get(f"https://{settings.http}/healthz")

    assert found == {"/healthz": 200, "/metrics": 404, "/v1/whoami": 404, "/": 404}
    assert (posted.status_code, posted.json()["detail"]) == (404, "only /healthz and /readyz are answered here")


async def test_a_server_that_drains_is_alive_and_not_ready(tmp_path: Path) -> None:
    probes = Address("127.0.0.1", free_port())
    settings = strict(tmp_path, Authority(tmp_path), probes, drain_delay_ms=1_000)

    async with httpx.AsyncClient(base_url=f"http://{probes}", trust_env=False) as kubelet:
        async with served(settings) as stop:
            await until_status(kubelet, "/readyz", 200)
            stop.set()
            await until_status(kubelet, "/readyz", 503)
            alive = (await kubelet.get("/healthz")).status_code
        with pytest.raises(httpx.ConnectError):
            await kubelet.get("/healthz")

    assert alive == httpx.codes.OK


@pytest.mark.parametrize(("trusted", "is_for_tls_only"), [("127.0.0.0/8", True), ("192.0.2.0/24", False)])
async def test_a_server_believes_the_proxies_of_its_settings(
    tmp_path: Path, trusted: str, is_for_tls_only: bool
) -> None:
    token = mint(b"t" * RANDOM_BYTES)
    scope = Rule("scope", ("token:ops",), ROLES["viewer"])
    write_tokens(tmp_path / "tokens.json", [TokenRecord(parse(token).token_id, "ops", parse(token).digest, (scope,))])
    (tmp_path / "access.toml").write_text("")
    settings = Settings(
        store=f"sqlite:///{tmp_path / 'rota.db'}",
        http=Address("127.0.0.1", free_port()),
        access_file=tmp_path / "access.toml",
        access_tokens_file=tmp_path / "tokens.json",
        trusted_proxies=trusted,  # type: ignore[arg-type]
        shard_count=2,
    )

    headers = {"sec-fetch-site": "same-origin", "x-forwarded-proto": "https"}
    async with served(settings), httpx.AsyncClient(base_url=f"http://{settings.http}", trust_env=False) as browser:
        await until_status(browser, "/readyz", 200)
        answer = await browser.post("/signin", data={"token": token}, headers=headers)

    assert ("Secure" in answer.headers["set-cookie"].split("; ")) is is_for_tls_only


async def until_status(client: httpx.AsyncClient, path: str, expected: int) -> None:
    """Ask until the answer is this one; before the server listens there is none."""
    deadline, found = time.monotonic() + 20, 0
    while found != expected:
        assert time.monotonic() < deadline, (path, found)
        await asyncio.sleep(0.02)
        with contextlib.suppress(httpx.ConnectError):
            found = (await client.get(path)).status_code
