"""Defects that a fuzzer must find, each planted while a run lasts; most of them were there once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httptools
import jwt
import msgspec
from cryptography import x509

from rota.core.access import certificates
from rota.core.group import join, shard
from rota.core.group.records import decode_entry
from rota.core.replica.ports import JournalEvent
from rota.protocol.calls import REPLY_OF
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, JoinGroup, JoinReply
from rota.protocol.wire import rejections
from rota.server.access import issuers
from rota.server.grpc import server as grpc_server
from rota.server.http import connection
from rota.server.liveness import redis as redis_store
from rota.server.peer import client, messages
from rota.storage import verify
from tests.fuzz.watch import MOST_CPU_S, MOST_GROWTH_MIB
from tests.simulation.registry import Patch, Patching, Planted, while_planted


@dataclass(frozen=True, slots=True)
class Plant:
    """A defect, the target that must find it, and what the finding says."""

    target: str
    says: str
    cases: int
    planted: Planted


PLANTS: dict[str, Plant] = {}


def plant(target: str, says: str, *, cases: int = 1_000) -> Callable[[Patching], None]:
    """Register a function that gets a way to patch an attribute for as long as the plant is in."""

    def register(patching: Patching) -> None:
        PLANTS[patching.__name__] = Plant(target, says, cases, while_planted(patching))

    return register


@plant("http1", "KeyError")
def a_handler_that_fails_by_an_unknown_field(patch: Patch) -> None:
    patch(rejections, "unknown", lambda kind, name, known: dict[str, str]()["unknown"])


@plant("http1", "ms of CPU")
def a_handler_that_stalls_the_loop(patch: Patch) -> None:
    def unknown(_kind: str, name: str, _known: Any) -> str:
        end = time.thread_time() + 2 * MOST_CPU_S
        while time.thread_time() < end:
            pass
        return name

    patch(rejections, "unknown", unknown)


@plant("http1", "answered as a request")
def a_body_that_is_the_next_request(patch: Patch) -> None:
    pieces: dict[connection.HttpConnection, bytes] = {}
    receive, stop = connection.HttpConnection.data_received, connection.HttpConnection._stop_reading

    def received(self: connection.HttpConnection, data: bytes) -> None:
        pieces[self] = data
        receive(self, data)

    def read_on(self: connection.HttpConnection, error: Exception) -> None:
        """As it was: the parser reads on behind the head of a request that asks for another protocol."""
        if isinstance(error, httptools.HttpParserUpgrade):
            self.data_received(pieces[self][error.args[0] :])
        else:
            stop(self, error)

    patch(connection, "_frames_a_body", lambda *_: False)
    patch(connection.HttpConnection, "data_received", received)
    patch(connection.HttpConnection, "_stop_reading", read_on)


@plant("http2", "UnicodeDecodeError")
def a_server_that_ends_with_an_unreadable_path(patch: Patch) -> None:
    patch(grpc_server, "lasting_server", lambda options: grpc.aio.server(options=options))


@plant("jwts", "worker by")
def a_signature_that_is_not_checked(patch: Patch) -> None:
    library = jwt

    class Careless:
        """The library, by a caller that has forgotten the key."""

        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def decode(self, token: str, *_: Any, **__: Any) -> Any:
            return library.decode(token, options={"verify_signature": False})

    patch(issuers, "jwt", Careless())


@plant("certificates", "by a certificate with")
def a_name_of_any_kind_that_is_an_id(patch: Patch) -> None:
    class Careless:
        """The library, by a caller that reads the names of hosts."""

        UniformResourceIdentifier = x509.DNSName

        def __getattr__(self, name: str) -> Any:
            return getattr(x509, name)

    patch(certificates, "x509", Careless())


@plant("journal", "IndexError")
def a_damaged_line_that_ends_the_fold(patch: Patch) -> None:
    def decode(line: dict[str, Any]) -> Any:
        try:
            return decode_entry(line)
        except (KeyError, TypeError, ValueError) as error:
            raise IndexError(line["kind"]) from error

    patch(verify, "decode_entry", decode)


@plant("journal", "memory has grown", cases=2_000)
def a_fold_that_is_never_forgotten(patch: Patch) -> None:
    kept: list[bytearray] = []
    genuine = verify.JournalFold.compare

    def compare(self: Any, *given: Any) -> Any:
        kept.append(bytearray(b"x" * (MOST_GROWTH_MIB * 2**20 // 400)))
        return genuine(self, *given)

    patch(verify.JournalFold, "compare", compare)


@plant("peers", "an internal error")
def a_reply_that_is_taken_for_a_request(patch: Patch) -> None:
    every_kind = {kind.__name__: kind for pair in REPLY_OF.items() for kind in pair}
    patch(messages, "_KINDS", every_kind)


@plant("redis", "UnicodeDecodeError")
def a_foreign_name_that_is_taken_for_a_member(patch: Patch) -> None:
    patch(redis_store, "_member", lambda text: tuple(text.decode().split("/", 2)))


@plant("redis", "ValueError")
def an_answer_that_is_read_outside_of_the_guard(patch: Patch) -> None:
    patch(redis_store.RedisLiveness, "_read", lambda _self, command, answer, read: read(command, answer))


@plant("peer_answers", "Answer(")
def an_answer_that_is_read_as_one_to_another_call(patch: Patch) -> None:
    genuine = messages.read_answer
    patch(client, "read_answer", lambda request, body: genuine(Heartbeat("n", "g", "m", 1), body))


@plant("peer_answers", "JournalEvent(")
def an_event_without_checked_types(patch: Patch) -> None:
    genuine = messages.unpack

    def unpack(kind: Any, data: bytes) -> Any:
        if kind is not messages.Watched:
            return genuine(kind, data)
        document = msgspec.msgpack.decode(data)
        return messages.Watched(JournalEvent(**document[0]) if document and document[0] else None)

    patch(client, "unpack", unpack)


@plant("issuers", "issuers.py")
def a_review_whose_answer_is_trusted(patch: Patch) -> None:
    async def status(self: Any, token: str) -> Any:
        answer = await self._ask("POST", f"{self._issuer.review}/tokenreviews", json={"spec": {"token": token}})
        return answer["status"]

    patch(issuers.Authority, "_status", status)


@plant("core", "StopIteration")
def a_protocol_that_counts_as_two_members(patch: Patch) -> None:
    genuine = join.check_join

    def check_join(group: Any, request: JoinGroup, limits: Limits) -> JoinReply | None:
        refusal = genuine(group, request, limits)
        return None if refusal is not None and refusal.detail.endswith("more than once") else refusal

    patch(shard, "check_join", check_join)
