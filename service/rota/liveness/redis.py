"""`Liveness` in Redis 7 or Valkey: one sorted set for each shard."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from rota.group.sessions import MemberName
from rota.liveness.scripts import PUBLISH, READ, RECORD, SEEN
from rota.liveness.urls import connection_options
from rota.replica.ports import LivenessUnavailable, SeenMembers, ShardNews

TIMEOUT_S = 0.2
CONNECTIONS = 16
CHUNK = 1_000
"""Members in one script: it blocks all other commands for about a millisecond."""
REMEMBER_MS = 24 * 3_600_000
"""Far above any session. Stale entries expire at last, and nothing relies on when."""
CLOCK_BACK_MS = 2_000
"""A time further in the future than this is from a clock that has gone back since, and says nothing."""

T = TypeVar("T")
Command = tuple[str, str, Sequence[str | int]]
"""A script, its key, its arguments."""


class RedisLiveness:
    """Keys are `rota:{INCARNATION-SHARD}:heard`: stores do not mix, and each key is in one slot of a cluster.

    A command that is cancelled or times out ends with its connection, which is never used again:
    otherwise the next caller would get the answer to this one's question (redis-py#2624).
    """

    def __init__(self, url: str, *, incarnation: str, timeout_s: float = TIMEOUT_S) -> None:
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._published: dict[int, int] = {}
        """Time of each shard's last update from here, by Redis's clock."""
        pool = BlockingConnectionPool(
            **connection_options(url),
            max_connections=CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # Retries belong to the caller, which knows the alternatives.
            retry=Retry(NoBackoff(), 0),
            client_name="rota",
        )
        self._redis = Redis.from_pool(pool)

    async def ping(self) -> None:
        async with self._answering():
            await self._redis.echo("rota")

    async def publish(self, news: Sequence[ShardNews]) -> list[int]:
        commands = [(some.shard_id, command) for some in news for command in self._tellings(some)]
        lost = set()
        for (shard_id, (_, _, arguments)), (now_ms, published) in zip(
            commands, await self._run([command for _, command in commands]), strict=True
        ):
            before_ms = self._published.get(shard_id)
            if before_ms is not None and (published is None or float(published) < before_ms):
                lost.add(shard_id)
            if arguments[2]:
                self._published[shard_id] = now_ms
        return sorted(lost)

    async def read(self, shard_id: int) -> SeenMembers:
        ((now_ms, flat),) = await self._run([(READ, self._key(shard_id), ())])
        seen = {name: _ms_ago(now_ms, score) for name, score in zip(flat[::2], flat[1::2], strict=True)}
        published_ms_ago = seen.pop(b"", None)
        return SeenMembers({_member(n): ms_ago for n, ms_ago in seen.items() if ms_ago is not None}, published_ms_ago)

    async def seen_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        by_shard: dict[int, list[int]] = {}
        for place, (shard_id, _) in enumerate(members):
            by_shard.setdefault(shard_id, []).append(place)
        asked = [(shard, some) for shard, places in by_shard.items() for some in _chunks(places)]
        found: list[int | None] = [None] * len(members)
        commands = [(SEEN, self._key(shard), [_text(members[place][1]) for place in some]) for shard, some in asked]
        for (_, places), (now_ms, scores) in zip(asked, await self._run(commands), strict=True):
            for place, score in zip(places, scores, strict=True):
                found[place] = None if score is None else _ms_ago(now_ms, score)
        return found

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        commands = [(RECORD, self._key(shard_id), [_text(name) for name in some]) for some in _chunks(members)]
        return [known == 1 for answer in await self._run(commands) for known in answer]

    async def close(self) -> None:
        await self._redis.aclose()

    # --- inside ------------------------------------------------------------------------------------

    def _key(self, shard_id: int) -> str:
        return f"rota:{{{self._incarnation}-{shard_id}}}:heard"

    def _tellings(self, some: ShardNews) -> Iterator[Command]:
        """The news in pieces; only the last says that they are complete."""
        seen, gone = iter(some.seen_ms_ago.items()), iter(some.gone)
        left = len(some.seen_ms_ago) + len(some.gone)
        while True:
            going = [_text(name) for name in islice(gone, CHUNK)]
            seen_now = {_text(name): ms_ago for name, ms_ago in islice(seen, CHUNK - len(going))}
            left -= len(going) + len(seen_now)
            yield (
                PUBLISH,
                self._key(some.shard_id),
                (json.dumps(going), json.dumps(seen_now), int(left == 0), REMEMBER_MS),
            )
            if left == 0:
                return

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        async with self._answering():
            try:
                return await self._send(commands)
            except NoScriptError:
                # Redis was restarted or its scripts flushed. Some of the commands may have run: they may run twice.
                for script in {script for script, _, _ in commands}:
                    await self._redis.script_load(script)
                return await self._send(commands)

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for script, key, arguments in commands:
                pipeline.execute_command("EVALSHA", _sha(script), 1, key, *arguments)
            answers: list[Any] = await pipeline.execute()
            return answers

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as error:
            raise LivenessUnavailable(f"no answer within {self._timeout_s:g} s") from error
        except (RedisError, OSError) as error:
            raise LivenessUnavailable(str(error)) from error


@cache
def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _chunks(some: Sequence[T]) -> Iterator[Sequence[T]]:
    return (some[start : start + CHUNK] for start in range(0, len(some), CHUNK))


def _ms_ago(now_ms: int, score: bytes) -> int | None:
    ms_ago = now_ms - int(float(score))
    return max(0, ms_ago) if ms_ago >= -CLOCK_BACK_MS else None


def _text(name: MemberName) -> str:
    """Namespaces and groups have no slash in them."""
    return "/".join(name)


def _member(text: bytes) -> MemberName:
    namespace, group_id, member_id = text.decode().split("/", 2)
    return namespace, group_id, member_id
