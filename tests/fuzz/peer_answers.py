"""Answers of a peer that are nearly what a replica sends: to calls and to watches."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import grpc
import msgspec

from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import Answer, JournalEvent, Replica, ShardOwner
from rota.protocol.calls import REPLY_OF
from rota.protocol.errors import NotInJournal
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatMany,
    HeartbeatManyReply,
    MemberHeartbeat,
)
from rota.protocol.wire.replies import encode_reply
from rota.server.peer.client import GrpcPeers
from rota.server.peer.messages import SERVICE, Asked, pack, unpack
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import as_messages, mutated, mutated_document
from tests.fuzz.peers import a_message
from tests.support.peers import asked

EVENT = JournalEvent(1, 0, "default", "g1", 1, "rebalance_started", "a member joined", {"cause": "x"}, 1)
BEATS = (Heartbeat("default", "g1", "m", 1), HeartbeatMany("default", "g1", (MemberHeartbeat("m", 1),)))
HELD, WATCH = "held", "watch"
REFUSALS: tuple[Any, ...] = ([3, 5, None, ""], [9, 1, 4, "abc"], ["x", None], [], {}, [1], [1, 2, 3], [1, 2, 3, "a", 5])


class PeerAnswerFuzzer:
    """Asks a peer, and checks the form of what comes out of the client."""

    cpu_s = staticmethod(time.thread_time)

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._random = Random(0)
        self._asked: Any = None
        runner.run(self._start())

    async def _start(self) -> None:
        self._server = grpc.aio.server()
        methods: Any = {"Exchange": grpc.stream_stream_rpc_method_handler(self._exchange)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._peer = Replica("r", "http://r", f"127.0.0.1:{port}")
        self._peers = GrpcPeers()

    async def end(self) -> None:
        await self._peers.close()
        await self._server.stop(None)

    def play(self, random: Random) -> None:
        self._random = random
        self._runner.run(random.choice((self._call, self._call, self._watch, self._notify, self._held))())

    async def _call(self) -> None:
        random = self._random
        request = random.choice((*BEATS, a_message(random, random.choice(list(REPLY_OF)))))
        self._asked = request
        outcome = await asked(self._peers, self._peer, request)
        if not isinstance(outcome, NoAnswer):
            self._check(request, outcome)

    async def _watch(self) -> None:
        self._asked = WATCH
        try:
            async for event in self._peers.watch(self._peer, "default", "g1", 0):
                if (type(event.epoch), type(event.seq), type(event.payload)) != (int, int, dict):
                    raise Broken(f"{event!r}")
        except NotInJournal as refusal:
            if type(refusal.after_revision) is not int or type(refusal.first_revision) is not int:
                raise Broken(f"{refusal!r}") from refusal

    async def _notify(self) -> None:
        self._asked = None
        await self._peers.notify_released([self._peer])
        await self._peers.notify_topics_changed([self._peer], ["default"])

    async def _held(self) -> None:
        self._asked = HELD
        rows = [ShardOwner(n, "r", "http://r", 1, 0, peer_address=self._peer.peer_address) for n in range(2)]
        if not await self._peers.held(rows) <= {0, 1}:
            raise Broken("it holds what it was not asked for")

    def _check(self, request: Any, answer: Answer) -> None:
        if type(answer.reply) is not REPLY_OF[type(request)]:
            raise Broken(f"{answer!r} to {request!r}")
        if not type(answer.revision) is type(answer.epoch) is int or type(answer.owner) is not str:
            raise Broken(f"{answer!r}")
        if not isinstance(answer.reply, HeartbeatManyReply):
            json.dumps(encode_reply(answer.reply))

    # --- the peer ----------------------------------------------------------------------------------

    async def _exchange(self, _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(data := await context.read(), bytes):
            for each in unpack(list[Asked], data):
                await context.write(self._sent(self._right(each)))
                if self._random.random() < 0.9:
                    await context.write(pack([[each.number, None, "no answer that can be read"]]))
                else:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    def _right(self, each: Asked) -> bytes:
        random, request, number = self._random, self._asked, each.number
        if request == WATCH:
            events: list[Any] = [[number, [EVENT]] for _ in range(random.choice((0, 1, 3)))]
            return pack([*events, [number, random.choice(([], [None, random.choice(REFUSALS)]))]])
        if request is None:
            return pack([[number, None]])
        if request == HELD:
            return pack([[number, random.choice((True, False, 7))]])
        kind = REPLY_OF[type(request)] if random.random() < 0.7 else random.choice(list(REPLY_OF.values()))
        return pack([[number, a_message(random, kind), "", 1, 1, "", [1, 2]]])

    def _sent(self, data: bytes) -> bytes:
        if self._random.random() < 0.6:
            data = as_messages(mutated_document(self._random, msgspec.msgpack.decode(data)))
        return mutated(self._random, data) if self._random.random() < 0.3 else data


@contextmanager
def opened() -> Iterator[PeerAnswerFuzzer]:
    with asyncio.Runner() as runner:
        fuzzer = PeerAnswerFuzzer(runner)
        yield fuzzer
        runner.run(fuzzer.end())


PEER_ANSWERS = Target("peer_answers", "answers of a peer: to calls and to watches", opened)
