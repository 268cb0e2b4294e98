"""The passwords of Postgres and Redis in files: one that has changed is brought by each new connection from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from rota.core.replica.ports import LivenessUnavailable, StoreRefused, StoreUnavailable
from rota.server.liveness.redis import RedisLiveness
from rota.storage.access import TokenTable
from rota.storage.migrate import upgrade
from rota.storage.urls import parse_store_url, split_password_file
from tests.support.postgres import PostgresServer
from tests.support.valkey import ValkeyServer


@pytest.mark.parametrize(
    ("url", "without", "file"),
    [
        ("postgresql://u@h/d?password_file=/run/pw", "postgresql://u@h/d", "/run/pw"),
        ("postgresql://h/d?sslmode=require&password_file=/a%20b&x=1", "postgresql://h/d?sslmode=require&x=1", "/a b"),
        ("redis://h:1/0?timeout=3", "redis://h:1/0?timeout=3", None),
        ("redis://h:1/0", "redis://h:1/0", None),
    ],
)
def test_a_url_is_parted_from_the_file_of_its_password(url: str, without: str, file: str | None) -> None:
    assert split_password_file(url) == (without, Path(file) if file else None)


async def test_a_new_password_of_postgres_is_a_new_file(
    postgres_server: PostgresServer, postgres_dsn: str, tmp_path: Path
) -> None:
    await upgrade(postgres_dsn)
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute("DROP ROLE IF EXISTS app; CREATE ROLE app SUPERUSER LOGIN PASSWORD 'first'")
    hba = postgres_server.data_directory / "pg_hba.conf"
    hba.write_text("host all app 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
    postgres_server.execute("SELECT pg_reload_conf()")
    file = tmp_path / "password"
    file.write_text("first\n")
    url = f"postgresql://app@127.0.0.1:{postgres_server.port}/{database}?password_file={file}"

    assert await TokenTable(url).read() == []
    postgres_server.execute("ALTER ROLE app PASSWORD 'second'")
    with pytest.raises((StoreRefused, StoreUnavailable)) as refused:
        await TokenTable(url).read()
    file.write_text("second\n")

    assert await TokenTable(url).read() == []
    assert "first" not in str(refused.value)
    assert "password" not in str(parse_store_url(url))


async def test_a_file_that_holds_no_text_is_no_damage_of_the_store(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes("geheim".encode("utf-16"))

    with pytest.raises(StoreUnavailable, match=f"cannot be reached.*password is no text in UTF-8.*{file}"):
        await TokenTable(f"postgresql://rota@127.0.0.1:1/rota?password_file={file}").read()


async def test_a_new_password_of_redis_is_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    with ValkeyServer() as server, redis.Redis(port=server.port) as client:
        client.config_set("requirepass", "first")
        url = f"{server.url}?password_file={file}"
        before, after = (RedisLiveness(url, incarnation="abc", timeout_s=10.0) for _ in range(2))

        await before.ping()
        client.config_set("requirepass", "second")
        with pytest.raises(LivenessUnavailable) as refused:
            await after.ping()
        file.write_text("second\n")
        await after.ping()

        assert "first" not in str(refused.value)
        await before.close()
        await after.close()
