"""`Liveness` in Redis 7 or Valkey: one sorted set for each shard."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from rota.core.group.sessions import MemberName
from rota.core.replica.ports import LivenessUnavailable, SeenMembers, ShardNews
from rota.server.liveness.scripts import CLOCK_BACK_MS, PUBLISH, READ, RECORD, SEEN
from rota.server.liveness.urls import connection_options

TIMEOUT_S = 0.2
CONNECTIONS = 16
CHUNK = 1_000
"""Maximum members in one script, which blocks all other commands for about a millisecond."""
REMEMBER_MS = 24 * 3_600_000
"""Far longer than any session. Stale entries expire eventually; their expiry has no other effect."""
MOST_ENTRIES = 500_000
"""A key with more entries is not read: no shard has so many members."""
WARN_S = 10.0

T = TypeVar("T")
Command = tuple[str, str, Sequence[str | int]]
"""A script, its key, its arguments."""

_log = logging.getLogger(__name__)
_WRONG_TYPE = "WRONGTYPE"


class RedisLiveness:
    """Keys are `rota:{INCARNATION-SHARD}:heard`: stores are separate, and each key is in one slot of a cluster.

    Other programs may share the Redis, so the form of an answer is never trusted. An unusable key is treated as lost,
    and entries that no replica writes are skipped; both are logged with the key and reported to `on_unusable`. Every
    other failure raises `LivenessUnavailable`.

    A command that is cancelled or times out ends with its connection, which is never used again: otherwise the next
    caller would get this command's answer (redis-py#2624).
    """

    def __init__(
        self,
        url: str,
        *,
        incarnation: str,
        timeout_s: float = TIMEOUT_S,
        on_unusable: Callable[[], None] = lambda: None,
    ) -> None:
        self._incarnation = incarnation
        self._timeout_s = timeout_s
        self._on_unusable = on_unusable
        self._warn_at_s = 0.0
        self._published: dict[int, int] = {}
        """Time of each shard's last update by this replica, by Redis's clock."""
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
        commands = [(some.shard_id, command) for some in news for command in self._updates(some)]
        lost = set()
        answers = await self._run([command for _, command in commands], _times)
        for (shard_id, (_, _, arguments)), times in zip(commands, answers, strict=True):
            now_ms, published_ms = times or (None, None)
            before_ms = self._published.get(shard_id)
            if now_ms is None or (before_ms is not None and (published_ms is None or published_ms < before_ms)):
                lost.add(shard_id)
            if now_ms is not None and arguments[2]:
                self._published[shard_id] = now_ms
        return sorted(lost)

    async def read(self, shard_id: int) -> SeenMembers:
        key = self._key(shard_id)
        (entries,) = await self._run([(READ, key, (MOST_ENTRIES,))], _entries)
        ages = dict(entries or ())
        published_ms_ago = ages.pop(b"", None)
        members = {name: _member(name) for name in ages}
        strange = [name for name, member in members.items() if member is None]
        if strange:
            self._report(key, f"{len(strange)} entries are not of members, such as {strange[0][:100]!r}")
        seen = {member: ms_ago for name, ms_ago in ages.items() if (member := members[name]) and ms_ago is not None}
        return SeenMembers(seen, published_ms_ago)

    async def seen_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        by_shard: dict[int, list[int]] = {}
        for place, (shard_id, _) in enumerate(members):
            by_shard.setdefault(shard_id, []).append(place)
        asked = [(shard, some) for shard, places in by_shard.items() for some in _chunks(places)]
        found: list[int | None] = [None] * len(members)
        commands = [(SEEN, self._key(shard), [_text(members[place][1]) for place in some]) for shard, some in asked]
        for (_, places), ages in zip(asked, await self._run(commands, _ages), strict=True):
            if ages is not None:
                for place, ms_ago in zip(places, ages, strict=True):
                    found[place] = ms_ago
        return found

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        commands = [(RECORD, self._key(shard_id), [_text(name) for name in some]) for some in _chunks(members)]
        answers = zip(commands, await self._run(commands, _known), strict=True)
        return [each for (_, _, names), known in answers for each in known or [False] * len(names)]

    async def close(self) -> None:
        await self._redis.aclose()

    # --- inside ------------------------------------------------------------------------------------

    def _key(self, shard_id: int) -> str:
        return f"rota:{{{self._incarnation}-{shard_id}}}:heard"

    def _updates(self, some: ShardNews) -> Iterator[Command]:
        """Yield the update in parts; only the last part marks it as complete."""
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

    async def _run(self, commands: Sequence[Command], read: Callable[[Command, Any], T]) -> list[T | None]:
        """Return `read` of each command and its answer; None if the key cannot be used."""
        async with self._answering():
            answers = await self._send(commands)
            unknown = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if unknown:
                # Redis was restarted or its scripts flushed.
                for script in {commands[place][0] for place in unknown}:
                    await self._redis.script_load(script)
                again = await self._send([commands[place] for place in unknown])
                for place, answer in zip(unknown, again, strict=True):
                    answers[place] = answer
            if answers and all(isinstance(answer, RedisError) and _WRONG_TYPE not in str(answer) for answer in answers):
                raise answers[0]  # The error is not about a key: Redis is loading, out of memory, or rejects writes.
        return [self._read(command, answer, read) for command, answer in zip(commands, answers, strict=True)]

    def _read(self, command: Command, answer: Any, read: Callable[[Command, Any], T]) -> T | None:
        try:
            if isinstance(answer, Exception):
                raise answer
            return read(command, answer)
        except Exception as error:
            self._report(command[1], f"{type(error).__name__}: {error}"[:200])
            return None

    def _report(self, key: str, why: str) -> None:
        self._on_unusable()
        if time.monotonic() >= self._warn_at_s:
            self._warn_at_s = time.monotonic() + WARN_S
            _log.warning(
                "a key in Redis has contents that no replica writes; its shard does not use them",
                extra={"key": key, "error": why},
            )

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for script, key, arguments in commands:
                pipeline.execute_command("EVALSHA", _sha(script), 1, key, *arguments)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
            return answers

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as error:
            raise LivenessUnavailable(f"no answer within {self._timeout_s:g} s") from error
        except Exception as error:
            # This includes the library's errors for bytes that no Redis sends.
            raise LivenessUnavailable(f"{type(error).__name__}: {error}") from error


@cache
def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _chunks(some: Sequence[T]) -> Iterator[Sequence[T]]:
    return (some[start : start + CHUNK] for start in range(0, len(some), CHUNK))


def _text(name: MemberName) -> str:
    """Format a member's name. Namespaces and groups contain no slash."""
    return "/".join(name)


# --- answers of the scripts: each of these raises for what no script of ours returns ---------------


def _times(_: Command, answer: Any) -> tuple[int, float | None]:
    """Return the time at Redis, and the time since the owner's last update."""
    now_ms, published = answer
    return _time(now_ms), None if published is None else float(published)


def _entries(_: Command, answer: Any) -> dict[bytes, int | None]:
    """Return the age of each entry."""
    now_ms, flat = answer
    return {bytes(name): _ms_ago(now_ms, score) for name, score in zip(flat[::2], flat[1::2], strict=True)}


def _ages(command: Command, answer: Any) -> list[int | None]:
    """Return the age of each requested entry."""
    now_ms, scores = answer
    asked = zip(command[2], scores, strict=True)
    return [None if score is None else _ms_ago(now_ms, score) for _, score in asked]


def _known(command: Command, answer: Any) -> list[bool]:
    """Return whether Redis has an entry of each name in the command."""
    return [known == 1 for _, known in zip(command[2], answer, strict=True)]


def _time(now_ms: Any) -> int:
    if type(now_ms) is not int:
        raise TypeError("not a time")
    return now_ms


def _ms_ago(now_ms: Any, score: bytes) -> int | None:
    """Return the age of an entry; None if its time cannot be one of a heartbeat."""
    at_ms = float(score)
    ms_ago = _time(now_ms) - int(at_ms) if math.isfinite(at_ms) else REMEMBER_MS + 1
    return max(0, ms_ago) if -CLOCK_BACK_MS <= ms_ago <= REMEMBER_MS else None


def _member(text: bytes) -> MemberName | None:
    """Return the member of an entry; None if another program wrote it."""
    try:
        namespace, group_id, member_id = text.decode().split("/", 2)
    except ValueError:
        return None
    return namespace, group_id, member_id
