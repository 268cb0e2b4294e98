"""HTTP/1.1 with kept-alive connections, to any of several addresses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import httpx

from rota.client.errors import CoordinatorUnreachable, error_for
from rota.client.transports.http_owners import asking_over_http
from rota.client.transports.owner_search import OwnerSearch
from rota.client.transports.owners import Owners
from rota.client.transports.port import GroupEvent
from rota.client.transports.sse import ServerSentEvent, events_of
from rota.credentials import Credentials
from rota.observability.tracing import carried
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import JoinReply, LeaveGroup, LeaveReply, LeftMember, Reply, Request, refuse
from rota.wire.documents import dump_document, parse_document
from rota.wire.problems import Problem, decode_problem
from rota.wire.replies import MalformedReply, Received, decode_reply
from rota.wire.routes import PREFIX, ROUTES, Target, encode_request

_CONNECT_TIMEOUT_S = 2.0
_STREAM_SILENCE_S = 45.0
"""The server pings a stream every 15 seconds: one that is silent for three pings is dead."""
_ELSEWHERE = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
OF_A_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_JSON = {"content-type": "application/json"}


class HttpTransport:
    """Speaks to one address until it fails, then to the next.

    Connections that cannot be opened are tried at each address within the same call, for then nothing was
    sent. Once a request may have arrived the call fails, and the next one goes elsewhere. A member's calls go first to
    whom is known to own its group (`owners.py`).
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        direct: bool = False,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`direct`: also go to owners that are none of these addresses. `inner` replaces the network, as httpx
        allows: an ASGI application in the same process, a proxy.
        """
        if not base_urls or isinstance(base_urls, str):
            raise ValueError("a list of at least one base URL is needed")
        self._base_urls = [url.rstrip("/") for url in base_urls]
        self._current = 0
        # Every member of the process parks one call, so the pool must not make them queue for connections.
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
        search = OwnerSearch(asking_over_http(self._http), self._base_urls, anywhere=direct)
        self._owners = Owners(search.find, is_likely_found=direct or len(self._base_urls) > 1)

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """As `Transport.send`."""
        tried: list[str] = []
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await self._exchange(request, timeout_ms / 1000, tried)
        except TimeoutError as error:
            self._avoid(request, tried[-1])
            raise CoordinatorUnreachable(f"no answer within {timeout_ms} ms") from error
        received, by = _decode(request, response), tried[-1]
        if received.reply.error in _ELSEWHERE:
            self._avoid(request, by)
        # Who does not forward knows whom to go to.
        self._owners.answered(request, received, by)
        return received

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """As `Transport.watch`."""
        path = f"{PREFIX.format(namespace=namespace)}/groups/{group_id}/events"
        query = {} if after_revision is None else {"after": str(after_revision)}
        no_end = httpx.Timeout(_STREAM_SILENCE_S, connect=_CONNECT_TIMEOUT_S)
        url = self._base_urls[self._current] + path
        try:
            async with self._http.stream("GET", url, params=query, timeout=no_end) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    problem = _problem(response)
                    raise error_for(problem.code, problem.detail)
                async for event in events_of(response.aiter_lines()):
                    if event.event_id:
                        yield _group_event(event)
        except httpx.TransportError as error:
            self._go_elsewhere()
            raise CoordinatorUnreachable(_describe(error)) from error

    async def close(self) -> None:
        await self._owners.close()
        await self._http.aclose()

    async def _exchange(self, request: Request, timeout_s: float, tried: list[str]) -> httpx.Response:
        """One request, at the first address that can be connected to: the last that is added to `tried`."""
        target = encode_request(request)
        problems: list[str] = []
        for address in self._addresses(request):
            tried.append(address)
            try:
                return await self._request(address, target, timeout_s)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problems.append(f"{address}: {_describe(error)}")
                self._avoid(request, address)
            except httpx.TransportError as error:
                self._avoid(request, address)
                raise CoordinatorUnreachable(_describe(error)) from error
        raise CoordinatorUnreachable("; ".join(problems))

    async def _request(self, address: str, target: Target, timeout_s: float) -> httpx.Response:
        content = None if target.body is None else dump_document(target.body)
        headers = (*(_JSON.items() if content else ()), *carried())
        return await self._http.request(
            target.method,
            address + target.path,
            params=target.query or None,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_TIMEOUT_S, timeout_s)),
        )

    def _addresses(self, request: Request) -> list[str]:
        """Where to send a request, in the order in which to try."""
        listed = self._base_urls[self._current :] + self._base_urls[: self._current]
        owner = self._owners.address_of(request)
        return listed if owner is None else [owner, *(address for address in listed if address != owner)]

    def _avoid(self, request: Request, address: str) -> None:
        """The next call goes to another address than this one."""
        self._owners.forget(request, address)
        if address == self._base_urls[self._current]:
            self._go_elsewhere()

    def _go_elsewhere(self) -> None:
        self._current = (self._current + 1) % len(self._base_urls)


@cache
def _system_context() -> ssl.SSLContext:
    """One for all clients of the process: to read what the system believes takes 40 ms."""
    return httpx.create_ssl_context(trust_env=False)


class _Shown(httpx.Auth):
    """Each request shows the token as it is by then."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        try:
            request.headers.update(self._credentials.headers())
        except ValueError as error:
            raise httpx.ConnectError(str(error)) from error
        yield request


def _describe(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _document(response: httpx.Response) -> dict[str, Any] | None:
    try:
        return parse_document(response.content)
    except RejectedRequest:
        return None


def _problem(response: httpx.Response) -> Problem:
    retry_after = response.headers.get("retry-after", "")
    return decode_problem(response.status_code, _document(response) or {}, retry_after)


def _decode(request: Request, response: httpx.Response) -> Received:
    """The reply in a response. What is no answer of a coordinator counts as none: nobody knows what it did."""
    if not response.is_success:
        problem = _problem(response)
        return Received(_refused(request, problem), problem.revision, problem.epoch, problem.retry_after_ms)
    document = _document(response)
    if document is None:
        raise CoordinatorUnreachable("the answer is no JSON object; is this a Rota server?")
    try:
        return decode_reply(ROUTES[type(request)].reply, document)
    except MalformedReply as error:
        raise CoordinatorUnreachable(f"the answer is no reply: {error}") from error


def _refused(request: Request, problem: Problem) -> Reply:
    if isinstance(request, LeaveGroup) and request.by_admin and problem.code in OF_A_MEMBER:
        # The route is that of the one member, so its own error is the answer's.
        (member,) = request.members
        return LeaveReply(members=(LeftMember(member.member_id, None, problem.code),))
    reply = refuse(request, problem.code, problem.detail)
    return replace(reply, member_id=problem.member_id) if isinstance(reply, JoinReply) else reply


def _group_event(event: ServerSentEvent) -> GroupEvent:
    document = parse_document(event.data.encode())
    return GroupEvent(
        revision=int(event.event_id),
        at_ms=document["at_ms"],
        generation_id=document["generation_id"],
        kind=document["kind"],
        reason=document["reason"],
        payload=document["payload"],
    )
