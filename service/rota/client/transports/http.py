"""HTTP/1.1 with kept-alive connections, to any of several addresses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from functools import cache
from typing import Annotated
from urllib.parse import quote

import httpx
import msgspec

from rota.client.errors import CoordinatorError, CoordinatorUnreachable
from rota.client.transports.causes import (
    cause_of,
    closed,
    credentials_failed,
    foreign,
    no_answer,
)
from rota.client.transports.http_answers import (
    HttpAnswer,
    events_of,
    group_event,
    pruned_in,
    read_answer,
    received_of,
    refusal_in,
)
from rota.client.transports.owners import Addresses, Ask, Group, OwnerOutOfReach, OwnerReport
from rota.client.transports.port import GroupEvent
from rota.credentials import Credentials, CredentialsError
from rota.protocol.calls import NAMESPACE_PATH, refuse
from rota.protocol.defaults import CONNECT_TIMEOUT_MS, STREAM_SILENCE_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Request
from rota.protocol.tracing import carried
from rota.protocol.wire.documents import dump_document
from rota.protocol.wire.problems import PRUNED_EVENT
from rota.protocol.wire.replies import Received
from rota.protocol.wire.routes import Target, encode_request

_CONNECT_TIMEOUT_S = CONNECT_TIMEOUT_MS / 1000
_JSON = {"content-type": "application/json"}


class HttpTransport:
    """If no connection can be opened, a call tries each address, because no request was sent."""

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        direct: bool = False,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`direct`: also call owners at other addresses than these. `inner` replaces httpx's network: an ASGI
        application in the same process, or a proxy.
        """
        self._is_closed = False
        # Every member of the process parks one call, so calls must not queue for connections of the pool.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0)
        shown = credentials or Credentials()
        self._http = httpx.AsyncClient(
            limits=limits,
            headers=dict(headers or {}),
            transport=inner,
            trust_env=False,
            auth=_Shown(shown) if shown.has_token else None,
            verify=_system_context() if (own := shown.ssl_context()) is True else own,
        )
        urls = base_urls if isinstance(base_urls, str) else [url.rstrip("/") for url in base_urls]
        self._addresses = Addresses(urls, asking_over_http(self._http), direct=direct)

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """Send a request: see `Transport.send`."""
        try:
            target = encode_request(request)
            content = None if target.body is None else dump_document(target.body)
        except (TypeError, ValueError) as error:
            # For example, text is no Unicode: no server could read it.
            return Received(refuse(request, ErrorCode.INVALID_REQUEST, str(error)))
        tried: list[str] = []
        connect_timeout_s = min(_CONNECT_TIMEOUT_S, timeout_ms / 1000)
        timeout = httpx.Timeout(timeout_ms / 1000, connect=connect_timeout_s)

        async def call(address: str) -> HttpAnswer:
            tried.append(address)
            try:
                return await self._request(address, target, content, timeout)
            except Exception as error:
                self._addresses.avoid(request, address)
                raise self._failure(error, address, connect_timeout_s) from error

        try:
            async with asyncio.timeout(timeout_ms / 1000):
                owner = self._addresses.owners.address_of(request)
                answer = await self._addresses.first_reached(call, owner)
        except TimeoutError as error:
            self._addresses.avoid(request, tried[-1])
            raise no_answer(tried[-1], timeout_ms) from error
        return self._read(request, answer, tried[-1])

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """Watch a group: see `Transport.watch`."""
        path = f"{NAMESPACE_PATH.format(namespace=namespace)}/groups/{group_id}/events"
        query = {} if after_revision is None else {"after": str(after_revision)}
        no_end = httpx.Timeout(STREAM_SILENCE_MS / 1000, connect=_CONNECT_TIMEOUT_S)
        address = self._addresses.url
        try:
            async with self._http.stream("GET", address + path, params=query, timeout=no_end) as response:
                if response.status_code != httpx.codes.OK:
                    raise refusal_in(await read_answer(response), address)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise foreign(f"the answer from {address} is no stream of events", is_lasting=True)
                async for event in events_of(response.aiter_lines()):
                    if event.event == PRUNED_EVENT:
                        raise pruned_in(event, address)
                    if event.event_id:
                        yield group_event(event, address)
        except CoordinatorError:
            self._addresses.leave(address)
            raise
        except Exception as error:
            self._addresses.leave(address)
            raise self._failure(error, address, _CONNECT_TIMEOUT_S) from error

    async def close(self) -> None:
        self._is_closed = True
        await self._addresses.owners.close()
        await self._http.aclose()

    async def _request(self, address: str, target: Target, content: bytes | None, timeout: httpx.Timeout) -> HttpAnswer:
        if self._is_closed:
            raise closed()
        headers = (*(_JSON.items() if content else ()), *carried())
        url, query = address + target.path, target.query or None
        async with self._http.stream(
            target.method, url, params=query, content=content, headers=headers, timeout=timeout
        ) as response:
            return await read_answer(response)

    def _read(self, request: Request, answer: HttpAnswer, address: str) -> Received:
        try:
            received = received_of(request, answer, address)
        except CoordinatorUnreachable:
            self._addresses.avoid(request, address)
            raise
        self._addresses.answered(request, received, address)
        return received

    def _failure(self, error: Exception, address: str, connect_timeout_s: float) -> CoordinatorUnreachable:
        if self._is_closed and not isinstance(error, CoordinatorUnreachable):
            return closed(was_sent=True)
        return cause_of(error, address, int(connect_timeout_s * 1000))


@cache
def _system_context() -> ssl.SSLContext:
    """Return one context for all clients of the process: reading the system's certificates takes 40 ms."""
    return httpx.create_ssl_context(trust_env=False)


class _Shown(httpx.Auth):
    """Sends the current token with each request."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        try:
            request.headers.update(self._credentials.headers())
        except CredentialsError as error:
            raise credentials_failed(error) from error
        yield request


class _Coordinator(msgspec.Struct):
    replica_id: str
    epoch: int
    lease_left_ms: int
    address: str
    reported_by: str = ""
    worker_http_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0


def asking_over_http(http: httpx.AsyncClient) -> Ask:
    """Return the lookup over HTTP: see `rota.client.transports.owners.Ask`."""

    async def ask(group: Group, at: str) -> OwnerReport:
        namespace, group_id = (quote(name, safe="") for name in group)
        try:
            response = await http.get(f"{at}{NAMESPACE_PATH.format(namespace=namespace)}/groups/{group_id}/coordinator")
            found = msgspec.json.decode(response.raise_for_status().content, type=_Coordinator)
        except Exception as error:
            # This call is optional: after any failure, requests are sent to the listed addresses.
            raise OwnerOutOfReach(str(error)) from error
        is_owned = found.lease_left_ms > 0
        return OwnerReport(
            found.replica_id if is_owned else "",
            found.reported_by,
            found.epoch,
            found.address.rstrip("/"),
            found.worker_http_port,
        )

    return ask
