"""No secret is ever logged, answered, counted or written into the journal: planted ones are looked for everywhere."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from rota.core.access.tokens import RANDOM_BYTES, mint
from rota.server.observability import logs as log_lines
from rota.server.observability.logs import PER_SOURCE, JsonFormatter, RefusalLog
from rota.server.settings import Settings
from tests.access.guarded import Secrets, Service, a_guarded_service, bearer
from tests.access.test_access_matrix import CALLERS, OF_ROUTES, OF_RPCS, headers_of, messages_by_rpc, targets_by_route

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Service, dict[str, Any]]]:
    secrets = Secrets(tmp_path_factory.mktemp("secrets"))
    headers = headers_of(secrets)
    async with a_guarded_service(secrets) as service:
        yield service, headers


@contextmanager
def all_logs() -> Iterator[io.StringIO]:
    """Everything that is logged in this process meanwhile, at the chattiest level, as the server writes it."""
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    # The test's own client is none of ours.
    for library in ("httpx", "httpcore", "asyncio", "aiosqlite"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def secret_parts(headers: dict[str, Any], secrets: Secrets) -> set[str]:
    """What of each credential must be seen nowhere: a JWT's signature, a token's secret, with their ends cut off."""
    values = {value.split()[-1] for pairs in headers.values() for _, value in pairs if len(value) > 40}
    parts = {value.rpartition("." if "." in value else "_")[2] for value in values}
    own = (secrets.folder / "reviewers_token").read_text().strip()
    return {part[2:-8] for part in parts if len(part) > 30} | {own}


@pytest.mark.slow
async def test_no_call_of_any_caller_leaves_a_secret_behind(world: tuple[Service, dict[str, Any]]) -> None:
    service, headers = world
    planted = secret_parts(headers, service.secrets)
    seen: list[str] = []

    with all_logs() as logs:
        for kind in CALLERS:
            seen += [await answered_over_http(service, route, headers[kind]) for route in OF_ROUTES]
            seen += [await answered_over_grpc(service.channel, rpc, headers[kind]) for rpc in OF_RPCS]
    lines = [repr(line) for shard in range(2) for line in await service.coordinator.events(shard, 0, 10_000)]
    seen += [logs.getvalue(), *lines, service.api.metrics.exposition().decode()]

    assert len(planted) > 12
    assert "refused" in logs.getvalue()
    assert [part for part in planted if any(part in text for text in seen)] == []


async def test_the_search_would_find_one(world: tuple[Service, dict[str, Any]]) -> None:
    service, headers = world
    planted = secret_parts(headers, service.secrets)
    (header,) = headers["token of a member"]

    with all_logs() as logs:
        logging.getLogger("rota.somewhere").debug("called", extra={"headers": [header]})

    assert [part for part in planted if part in logs.getvalue()] != []


async def test_why_credentials_are_refused_is_logged_without_them(
    world: tuple[Service, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = world
    made_up = [mint(bytes([number]) * RANDOM_BYTES) for number in range(40)]
    monkeypatch.setattr(log_lines, "_lines", RefusalLog(lambda: 0.0))

    with all_logs() as logs:
        for token in made_up:
            await service.http.get("/v1/whoami", headers=bearer(token))
            assert token.split("_")[2] not in logs.getvalue()

    assert '"detail": "the token is not known"' in logs.getvalue()
    assert logs.getvalue().count("credentials were refused") == PER_SOURCE


@pytest.mark.parametrize("setting", ["access_file", "access_tokens_file", "peer_secret_file"])
async def test_a_secret_in_the_wrong_file_is_not_quoted(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "file"
    file.write_text("planted-secret\n'")

    with pytest.raises(ValueError) as refused:
        Settings(**{setting: file})  # type: ignore[arg-type]

    (error,) = refused.value.errors()  # type: ignore[attr-defined]
    assert error["loc"] == (setting,)
    assert "planted" not in error["msg"]


async def answered_over_http(service: Service, route: tuple[str, str], headers: list[tuple[str, str]]) -> str:
    method, path, query, body = targets_by_route()[route]
    async with service.http.stream(method, path, params=query, json=body, headers=headers) as response:
        reported = str(response.headers)
        return reported if path.endswith("/events") else reported + (await response.aread()).decode()


async def answered_over_grpc(channel: grpc.aio.Channel, rpc: str, headers: list[tuple[str, str]]) -> str:
    if rpc.endswith(("/Session", "/WatchGroup")):
        return ""
    try:
        answer: Any = await channel.unary_unary(rpc)(messages_by_rpc()[rpc], metadata=tuple(headers))  # type: ignore[arg-type]
    except grpc.aio.AioRpcError as error:
        return f"{error.details()} {error.trailing_metadata()}"
    return str(answer)
