"""What only a real server shows: keys, restarts, late answers, cancelled questions, TLS and passwords."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
import trustme

from rota.core.group.sessions import MemberName
from rota.core.replica.ports import LivenessUnavailable, ShardNews
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import Heartbeat, JoinReply
from rota.server.liveness import redis as redis_store
from rota.server.liveness.redis import RedisLiveness
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.liveness.conftest import PATIENT_S, on
from tests.runtime.conftest import NOW, a_join
from tests.support.link import Link
from tests.support.valkey import ValkeyServer

A: MemberName = ("default", "orders", "a")


@pytest.fixture
async def liveness(valkey_server: ValkeyServer) -> AsyncIterator[RedisLiveness]:
    store = on(valkey_server, incarnation="abc")
    yield store
    await store.close()


def news(*names: MemberName, shard_id: int = 3, ms_ago: int = 0) -> list[ShardNews]:
    return [ShardNews(shard_id, dict.fromkeys(names, ms_ago), ())]


async def test_each_shard_has_one_key_in_one_slot_of_a_cluster(
    liveness: RedisLiveness, valkey_server: ValkeyServer
) -> None:
    await liveness.publish([*news(A, shard_id=3), *news(A, shard_id=4)])

    with redis.Redis(port=valkey_server.port) as client:
        keys = sorted(client.scan_iter())
        # An entry that no replica publishes any more does not stay for ever.
        assert [client.ttl(key) > 0 for key in keys] == [True, True]
    assert keys == [b"rota:{abc-3}:heard", b"rota:{abc-4}:heard"]


async def test_stores_do_not_mix(liveness: RedisLiveness, valkey_server: ValkeyServer) -> None:
    another = on(valkey_server, incarnation="def")
    await liveness.publish(news(A))

    assert (await another.read(3)).seen_ms_ago == {}
    await another.close()


async def test_replicas_share(liveness: RedisLiveness, valkey_server: ValkeyServer) -> None:
    another = on(valkey_server, incarnation="abc")
    await liveness.publish(news(A, ms_ago=60_000))

    assert await another.record(3, [A]) == [True]

    (seen,) = await liveness.seen_ms_ago([(3, A)])
    assert seen is not None
    assert seen < 30_000
    await another.close()


@pytest.mark.parametrize("loss", ["flushall", "restart"])
async def test_a_server_that_has_lost_its_memory_is_noticed(
    liveness: RedisLiveness, valkey_server: ValkeyServer, loss: str
) -> None:
    assert await liveness.publish(news(A)) == []
    getattr(valkey_server, loss)()
    with suppress(LivenessUnavailable):
        await liveness.ping()

    assert await liveness.publish(news()) == [3]
    assert await liveness.publish(news(A)) == []
    assert set((await liveness.read(3)).seen_ms_ago) == {A}


async def test_scripts_are_loaded_again_after_a_restart(liveness: RedisLiveness, valkey_server: ValkeyServer) -> None:
    await liveness.publish(news(A))
    with redis.Redis(port=valkey_server.port) as client:
        client.script_flush()

    assert await liveness.record(3, [A]) == [True]


@pytest.mark.parametrize(
    "entries",
    [
        {"another program's member": 1},
        {b"\xff\xfe": 1},
        {"a/b": 1},
        {"default/orders/b": "inf"},
        {"default/orders/b": "-inf"},
        {"default/orders/b": 1e300},
        {"default/orders/b": -1},
    ],
)
async def test_entries_that_no_replica_writes_are_skipped(
    valkey_server: ValkeyServer, entries: dict[str, float]
) -> None:
    unusable: list[None] = []
    liveness = on(valkey_server, incarnation="abc", on_unusable=lambda: unusable.append(None))
    await liveness.publish(news(A))
    with redis.Redis(port=valkey_server.port) as client:
        client.zadd("rota:{abc-3}:heard", entries)

    seen = await liveness.read(3)
    asked = await liveness.seen_ms_ago([(3, A), (3, ("default", "orders", "b"))])

    assert set(seen.seen_ms_ago) == {A}
    assert seen.published_ms_ago is not None
    assert [each is not None for each in asked] == [True, False]
    assert len(unusable) == ("default/orders/b" not in entries)
    await liveness.close()


async def test_a_time_in_the_future_is_removed_by_the_next_update(
    liveness: RedisLiveness, valkey_server: ValkeyServer
) -> None:
    await liveness.publish(news(A))
    with redis.Redis(port=valkey_server.port) as client:
        client.zadd("rota:{abc-3}:heard", {"": "inf", "default/orders/a": "inf"})

    assert await liveness.publish(news()) == [3], "all is to be published again"
    assert await liveness.publish(news(A)) == []
    seen = await liveness.read(3)
    assert set(seen.seen_ms_ago) == {A}
    assert seen.published_ms_ago is not None


async def test_a_key_of_another_type_costs_its_shard_alone(
    valkey_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    unusable: list[None] = []
    liveness = on(valkey_server, incarnation="abc", on_unusable=lambda: unusable.append(None))
    with redis.Redis(port=valkey_server.port) as client:
        client.set("rota:{abc-3}:heard", "another program's value")

    lost = await liveness.publish([*news(A, shard_id=3), *news(A, shard_id=4)])
    asked = await liveness.seen_ms_ago([(3, A), (4, A)])
    known = [await liveness.record(shard_id, [A]) for shard_id in (3, 4)]

    assert (lost, known) == ([3], [[False], [True]])
    assert [each is not None for each in asked] == [False, True]
    assert (await liveness.read(3)).published_ms_ago is None
    assert len(unusable) == 4
    assert [record.__dict__["key"] for record in caplog.records] == ["rota:{abc-3}:heard"]
    await liveness.close()


async def test_a_key_with_too_many_entries_is_not_read(
    valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MOST_ENTRIES", 3)
    liveness = on(valkey_server, incarnation="abc")
    await liveness.publish(
        [*news(A, shard_id=4), *news(*[("default", "orders", str(n)) for n in range(9)], shard_id=3)]
    )

    assert (await liveness.read(3)).published_ms_ago is None
    assert set((await liveness.read(4)).seen_ms_ago) == {A}
    await liveness.close()


async def test_a_redis_that_takes_no_writes_is_away(valkey_server: ValkeyServer) -> None:
    liveness = on(valkey_server, incarnation="abc")
    with redis.Redis(port=valkey_server.port) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(LivenessUnavailable, match="ReadOnlyError"):
                await liveness.publish([*news(A, shard_id=3), *news(A, shard_id=4)])
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
    await liveness.close()


async def test_a_time_in_the_future_is_no_sign_of_life(liveness: RedisLiveness, valkey_server: ValkeyServer) -> None:
    await liveness.publish(news(A))
    with redis.Redis(port=valkey_server.port) as client:
        seconds, _ = client.time()
        # As after a fail-over to a machine with a clock that is behind.
        client.zadd("rota:{abc-3}:heard", {"default/orders/a": (seconds + 60) * 1000})

    assert await liveness.seen_ms_ago([(3, A)]) == [None]
    assert (await liveness.read(3)).seen_ms_ago == {}


async def test_a_server_that_is_not_there_is_unavailable_at_once(valkey_server: ValkeyServer) -> None:
    liveness = on(valkey_server)
    valkey_server.stop()

    with pytest.raises(LivenessUnavailable):
        await liveness.publish(news(A))
    await liveness.close()


async def test_a_late_answer_of_a_silent_server_reaches_no_call(
    valkey_server: ValkeyServer,
) -> None:
    async with Link(valkey_server.port) as link:
        liveness = RedisLiveness(f"redis://127.0.0.1:{link.port}", incarnation="abc", timeout_s=PATIENT_S)
        await liveness.publish([*news(A, shard_id=1, ms_ago=60_000), *news(A, shard_id=2, ms_ago=600_000)])
        link.cut()
        liveness._timeout_s = 0.2

        with pytest.raises(LivenessUnavailable):
            await liveness.seen_ms_ago([(1, A)])

        liveness._timeout_s = PATIENT_S
        link.heal()
        (seen,) = await liveness.seen_ms_ago([(2, A)])
        assert seen is not None
        assert seen >= 600_000
        await liveness.close()


async def test_nobody_gets_the_answer_to_a_question_that_was_cancelled(valkey_server: ValkeyServer) -> None:
    """redis-py#2624: reproduced there with a proxy like this one. Here every member has a time of its own."""
    names: list[MemberName] = [("default", "orders", f"m{n}") for n in range(200)]
    minutes = {name: n * 60_000 for n, name in enumerate(names)}
    dice = random.Random(2_624)
    async with Link(valkey_server.port, delay_s=0.005) as link:
        liveness = RedisLiveness(f"redis://127.0.0.1:{link.port}", incarnation="abc", timeout_s=10.0)
        await liveness.publish([ShardNews(1, minutes, ())])

        async def ask(name: MemberName) -> None:
            (seen,) = await liveness.seen_ms_ago([(1, name)])
            assert seen is not None
            assert seen // 60_000 == minutes[name] // 60_000, "another member's answer"

        cancelled = 0
        for _ in range(15):
            asked = [asyncio.create_task(ask(dice.choice(names))) for _ in range(20)]
            await asyncio.sleep(dice.uniform(0, 0.012))
            for task in asked:
                if dice.random() < 0.5:
                    task.cancel()
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            wrong = [o for o in outcomes if isinstance(o, Exception) and not isinstance(o, asyncio.CancelledError)]
            assert wrong == []
            cancelled += sum(isinstance(o, asyncio.CancelledError) for o in outcomes)
        assert cancelled > 20
        # Cancelled ones cost their connection: that is how their answers get lost.
        assert link.connections > 16
        await liveness.close()


async def test_over_tls_with_a_password(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    with ValkeyServer() as server:
        with redis.Redis(port=server.port) as client:
            client.config_set("requirepass", "secret")
        async with Link(server.port, tls=server_side) as link:
            at = f"127.0.0.1:{link.port}/0?ssl_ca_certs={tmp_path / 'ca.pem'}"
            right = RedisLiveness(f"rediss://:secret@{at}", incarnation="abc", timeout_s=10.0)
            wrong = RedisLiveness(f"rediss://:guess@{at}", incarnation="abc", timeout_s=10.0)
            stranger = RedisLiveness(f"rediss://:secret@127.0.0.1:{link.port}/0", incarnation="abc", timeout_s=10.0)

            assert await right.publish(news(A)) == []
            for refused in (wrong, stranger):
                with pytest.raises(LivenessUnavailable) as raised:
                    await refused.ping()
                assert "guess" not in str(raised.value)
                assert "secret" not in str(raised.value)
            for store in (right, wrong, stranger):
                await store.close()


async def test_a_server_that_pauses_expires_no_live_member(
    valkey_server: ValkeyServer,
) -> None:
    store = MemoryStore(SystemClock().monotonic_ms)
    await store.open(2)
    liveness = RedisLiveness(valkey_server.url, incarnation="abc")
    async with LocalCoordinator(store, shard_count=2, limits=NOW, liveness=liveness) as coordinator:
        await coordinator.wait_until_ready()
        joined = (await coordinator.call(a_join("g", session_timeout_ms=1_000))).reply
        assert isinstance(joined, JoinReply)
        beat = Heartbeat("default", "g", joined.member_id, joined.generation_id)
        name = ("default", "g", joined.member_id)

        async def beats(count: int) -> set[ErrorCode]:
            answers: set[ErrorCode] = set()
            for _ in range(count):
                answers.add((await coordinator.call(beat)).reply.error)
                await asyncio.sleep(0.1)
            return answers

        answers = await beats(3)
        valkey_server.process.pause()
        answers |= await beats(15)
        valkey_server.process.resume()
        valkey_server.restart()
        answers |= await beats(15)
        reader = on(valkey_server, incarnation="abc")
        async with asyncio.timeout(60):
            while set((await reader.read(shard_of("default", "g", 2))).seen_ms_ago) != {name}:
                answers |= await beats(1)

        assert answers == {ErrorCode.NONE}
    await reader.close()
    await liveness.close()
