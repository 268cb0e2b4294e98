"""The command line's calls to a server: one request, one reply, and every failure as one clear line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from msgspec.structs import replace

from rota.cli.exits import CommandFailed, Exit, exit_for
from rota.cli.options import Shared, check_connection, usage
from rota.protocol.calls import NAMESPACE_PATH, REPLY_OF
from rota.protocol.defaults import COMMAND_LINE_TIMEOUT_MS, STREAM_SILENCE_MS
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.ids import check_group_id, check_topic
from rota.protocol.messages import (
    DeleteOffsets,
    FetchOffsets,
    GroupRequest,
    ListedGroup,
    ListedTopic,
    ListGroups,
    ListReply,
    ListTopics,
    ListTopicsReply,
    Reply,
    Request,
    TopicRequest,
    parks_for_ms,
)
from rota.protocol.wire.addresses import HTTP, IS_THIS_ROTA, split_address
from rota.protocol.wire.documents import parse_document
from rota.protocol.wire.problems import PRUNED_EVENT, Problem, decode_problem, detail_at
from rota.protocol.wire.replies import MalformedReply, decode_reply
from rota.protocol.wire.routes import encode_request

AnyReply = TypeVar("AnyReply", bound=Reply)
AnyList = TypeVar("AnyList", ListGroups, ListTopics)

NAMESPACES = "/v1/namespaces"
_TIMEOUT_S = COMMAND_LINE_TIMEOUT_MS / 1000


class RevisionOutOfRange(CommandFailed):
    """The journal does not have the requested lines: they are pruned, or it ends before them.

    It has the lines after the revision `next_after`.
    """

    def __init__(self, message: str, next_after: int, *, is_pruned: bool) -> None:
        super().__init__(message, exit_for(ErrorCode.REVISION_OUT_OF_RANGE))
        self.next_after = next_after
        self.is_pruned = is_pruned


class Server:
    """A server that is called over HTTP. Use as a context manager."""

    def __init__(self, options: Shared, timeout_s: float = _TIMEOUT_S) -> None:
        self.namespace = options.namespace
        self._timeout_s = timeout_s
        self.url = options.url.rstrip("/")
        check_connection(options)
        with usage():
            if split_address(options.url).scheme not in HTTP:
                raise ValueError(f"{options.url!r} is no http:// or https:// URL: only members speak gRPC")
            # As in the SDK, a proxy of the environment is not used.
            self._http = httpx.Client(
                base_url=self.url,
                timeout=timeout_s,
                trust_env=False,
                headers=options.credentials.headers(),
                verify=options.credentials.ssl_context(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(self, request: Request, reply_type: type[AnyReply]) -> AnyReply:
        """Return the reply to a request; an error of the protocol ends the command."""
        _check_names(request)
        with usage():
            target = encode_request(request)
        wait_s = parks_for_ms(request) / 1000
        document = self.exchange(target.method, target.path, target.query, target.body, wait_s=wait_s)
        try:
            reply = decode_reply(REPLY_OF[type(request)], document).reply
        except MalformedReply as error:
            raise CommandFailed(f"{self.url} does not answer like a Rota server: {error}") from error
        assert isinstance(reply, reply_type)
        return reply

    def exchange(
        self,
        method: str,
        path: str,
        query: tuple[tuple[str, str], ...] = (),
        body: dict[str, Any] | None = None,
        *,
        wait_s: float = 0,
    ) -> dict[str, Any]:
        """Return the JSON object of an answer, which may be parked for `wait_s`."""
        timeout_s = self._timeout_s + wait_s
        with self._reaching():
            response = self._http.request(method, path, params=list(query), json=body, timeout=timeout_s)
        return self._checked(response)

    def namespaces(self) -> list[str]:
        """Return the namespaces that the caller may read, by name."""
        return [str(each) for each in self.exchange("GET", NAMESPACES).get("namespaces", ())]

    def pages(self, request: AnyList, reply_type: type[AnyReply]) -> Iterator[AnyReply]:
        """Yield all pages of a list."""
        after: str | None = ""
        while after is not None:
            page: Any = self.call(replace(request, after=after), reply_type)
            yield page
            after = page.next_after

    def groups(self, namespace: str) -> list[ListedGroup]:
        """Return all groups of a namespace."""
        return [group for page in self.pages(ListGroups(namespace), ListReply) for group in page.groups]

    def topics(self, namespace: str) -> list[ListedTopic]:
        """Return all topics of a namespace."""
        return [topic for page in self.pages(ListTopics(namespace), ListTopicsReply) for topic in page.topics]

    def has_group(self, group_id: str) -> bool:
        """Return whether the group exists; also True if this caller may not know."""
        try:
            self.exchange("GET", self.group_path(group_id))
        except CommandFailed as failed:
            return failed.exit_code is not Exit.NOT_FOUND
        return True

    def get(self, path: str) -> httpx.Response:
        """Return the response of any path, whatever its status."""
        with self._reaching():
            return self._http.get(path)

    def group_path(self, group_id: str, *more: str) -> str:
        """Return the path of a group, or of a resource below it."""
        check_group_id(group_id)
        below = (quote(part, safe="") for part in ("groups", group_id, *more))
        return "/".join((NAMESPACE_PATH.format(namespace=self.namespace), *below))

    def events(self, path: str, after: int) -> Iterator[dict[str, Any]]:
        """Yield the server-sent events of one endless response; fails when no ping came for `STREAM_SILENCE_MS`."""
        silence = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_MS / 1000)
        with self._reaching(), self._http.stream("GET", path, params={"after": after}, timeout=silence) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                self._checked(response)
            frame: dict[str, str] = {}
            for line in response.iter_lines():
                name, _, value = line.partition(":")
                if name:
                    frame[name] = value.removeprefix(" ")
                elif not line:
                    if frame.get("event") == PRUNED_EVENT:
                        document = json.loads(frame["data"])
                        problem = decode_problem(document.get("status", 0), document)
                        text = "the stream ended with an error that is not Rota's"
                        raise _failure_in(problem) if problem else CommandFailed(text)
                    if "id" in frame:  # Events without an id are about the stream itself.
                        yield json.loads(frame["data"])
                    frame = {}

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            message = f"no server answers at {self.url} ({str(error) or type(error).__name__}); `rota serve` starts one"
            if isinstance(error, httpx.RemoteProtocolError) or split_address(self.url).scheme == "https":
                # Another program may answer there. The SDK describes it, but takes 0.1 s to import.
                from rota.client.errors import UnreachableKind
                from rota.client.transports.causes import cause_of

                cause = cause_of(error, self.url, int(self._timeout_s * 1000))
                if cause.kind in (UnreachableKind.TLS, UnreachableKind.FOREIGN_ANSWER):
                    message = cause.detail
            raise CommandFailed(message, Exit.UNAVAILABLE) from error
        except httpx.RequestError as error:
            # The response is not in its stated encoding, or redirects without end.
            message = f"{self.url} gives no answer that can be read; {IS_THIS_ROTA}"
            raise CommandFailed(message, Exit.UNAVAILABLE) from error

    def _checked(self, response: httpx.Response) -> dict[str, Any]:
        try:
            document = parse_document(response.content)
        except RejectedRequest:
            document = {}
        if response.is_success and document:
            return document
        problem = decode_problem(response.status_code, document)
        if problem is None:
            message = (
                f"HTTP status {response.status_code} from {self.url} without an error code of Rota's; {IS_THIS_ROTA}"
            )
            raise CommandFailed(message, Exit.UNAVAILABLE)
        detail = detail_at(problem, response.status_code, self.url)
        raise _failure_in(replace(problem, detail=detail))


def _failure_in(problem: Problem) -> CommandFailed:
    """Convert an error of the server to the end of a command."""
    message = f"{problem.detail} ({problem.code})"
    if problem.code is not ErrorCode.REVISION_OUT_OF_RANGE:
        return CommandFailed(message, exit_for(problem.code))
    if problem.last_revision is not None:
        return RevisionOutOfRange(message, problem.last_revision, is_pruned=False)
    return RevisionOutOfRange(message, problem.first_revision - 1, is_pruned=True)


def _check_names(request: Request) -> None:
    """Reject invalid names, which would change the path of the call."""
    if isinstance(request, GroupRequest):
        check_group_id(request.group_id)
    if isinstance(request, TopicRequest):
        check_topic(request.topic)
    if isinstance(request, FetchOffsets | DeleteOffsets):
        for selected in request.topics or ():
            check_topic(selected.topic)
