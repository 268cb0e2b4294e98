"""Roles that may call the fence functions, and no more, hold up no shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg
import pytest

from rota.protocol.ids import shard_of
from rota.server.runtime.coordinator import LocalCoordinator
from tests.fencing.conftest import fetched, joined, replaced, serving

ASSERT = "SELECT rota.assert_current('default', 'tellers', $1, $2)"
COMMIT = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, 'transfers', 0, 7)"
TELLERS = shard_of("default", "tellers", 4)
IMMEDIATE = "SET CONSTRAINTS ALL IMMEDIATE"
IN_A_BLOCK = f"DO $$ BEGIN {IMMEDIATE}; END $$"
PLAIN_STRINGS = "SET standard_conforming_strings = off"


@pytest.mark.parametrize(
    "early",
    [(IMMEDIATE,), (IN_A_BLOCK,), (IMMEDIATE, IMMEDIATE), (f"{IMMEDIATE} ;\n",), (PLAIN_STRINGS, IMMEDIATE)],
)
@pytest.mark.parametrize("is_first", [True, False])
async def test_set_constraints_immediate_takes_no_gate(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, early: tuple[str, ...], is_first: bool
) -> None:
    me = await joined(coordinator)

    transaction = teller.transaction()
    await transaction.start()
    for statement in early if is_first else ():
        await teller.execute(statement)
    await teller.execute(ASSERT, me.generation_id, me.member_id)
    for statement in () if is_first else early:
        await teller.execute(statement)
    new = await replaced(coordinator, me)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await transaction.commit()

    assert new.generation_id > me.generation_id
    assert refused.value.sqlstate == "RT001"


@pytest.mark.parametrize("early", [IMMEDIATE, IN_A_BLOCK])
async def test_offsets_commit_after_set_constraints_immediate(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, early: str
) -> None:
    me = await joined(coordinator)

    async with teller.transaction():
        await teller.execute(COMMIT, me.generation_id, me.member_id)
        await teller.execute(early)

    assert await fetched(coordinator) == {("transfers", 0): 7}


@pytest.mark.parametrize(
    "text", [f"{IMMEDIATE}; SELECT 1", f"SELECT 1; {IMMEDIATE}", f"{IMMEDIATE}; {IMMEDIATE}", f"{IMMEDIATE}; COMMIT"]
)
async def test_several_statements_with_set_constraints_are_refused(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, text: str
) -> None:
    me = await joined(coordinator)

    transaction = teller.transaction()
    await transaction.start()
    await teller.execute(ASSERT, me.generation_id, me.member_id)
    with pytest.raises(asyncpg.PostgresError, match="a fence needs a COMMIT"):
        await teller.execute(text)
    await transaction.rollback()


@pytest.mark.parametrize("text", ["COMMIT", "END", "COMMIT AND NO CHAIN", "SELECT 1; COMMIT"])
async def test_each_way_to_commit_commits_offsets(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, text: str
) -> None:
    me = await joined(coordinator)

    await teller.execute("BEGIN")
    await teller.execute(COMMIT, me.generation_id, me.member_id)
    await teller.execute(text)

    assert await fetched(coordinator) == {("transfers", 0): 7}


@pytest.mark.parametrize("setting", ["SET standard_conforming_strings = on", PLAIN_STRINGS])
async def test_a_procedure_that_commits_commits_offsets(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, dsn: str, setting: str
) -> None:
    me = await joined(coordinator)
    admin = await asyncpg.connect(dsn)
    await admin.execute(
        "CREATE PROCEDURE public.work(generation integer, member text) LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM rota.commit_offsets('default', 'tellers', generation, member, 'transfers', 0, 7); COMMIT; END $$"
    )
    await admin.close()

    await teller.execute(f"{setting}; SET statement_timeout = '5s'")  # It may never end.
    await teller.execute("CALL public.work($1, $2)", me.generation_id, me.member_id)

    assert await fetched(coordinator) == {("transfers", 0): 7}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "is_committing"),
    [
        ("", True),
        ("PL/pgSQL function work(integer,text) line 1 at COMMIT", True),
        ("PL/pgSQL-Funktion work(integer,text) Zeile 1 bei COMMIT", True),
        ("work(integer,text) PL/pgSQL fonksiyonu, 1. satır, COMMIT içinde", True),
        ("PL/pgSQL関数work(integer,text)の1行目 - COMMIT", True),
        ('PL/Python procedure "work"', True),
        ('SQL statement "SET CONSTRAINTS ALL IMMEDIATE"', False),
        ("SQL-Anweisung »SET CONSTRAINTS ALL IMMEDIATE -- PL/pgSQL«", False),
        ('SQL function "early" statement 1', False),
    ],
)
async def test_a_commit_is_known_in_each_language(
    coordinator: LocalCoordinator, dsn: str, line: str, is_committing: bool
) -> None:
    """Postgres translates the lines of its stack (`lc_messages`)."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as admin:
        context = f"PL/pgSQL function rota.fence_at_commit() line 6 at GET DIAGNOSTICS\n{line}".rstrip("\n")
        assert await admin.fetchval("SELECT rota.is_committing($1)", context) is is_committing


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.02)


async def wait_for_the_gate(dsn: str) -> None:
    """Return when a transaction that commits holds a gate."""
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7682003 AND granted"
    admin = await asyncpg.connect(dsn)
    async with asyncio.timeout(10):
        while not await admin.fetchval(query):  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.02)
    await admin.close()


SLEEPS_AT_COMMIT = """
    CREATE TEMPORARY TABLE mine (id integer);
    CREATE FUNCTION pg_temp.sleep() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER last AFTER INSERT ON mine DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION pg_temp.sleep();
"""


async def test_a_commit_that_sleeps_in_the_gate_is_terminated(dsn: str, teller: asyncpg.Connection) -> None:
    roles: list[str] = []
    async with serving(dsn, on_terminated=roles.append) as coordinator:
        me = await joined(coordinator)
        await teller.execute(SLEEPS_AT_COMMIT)
        transaction = teller.transaction()
        await transaction.start()
        await teller.execute(ASSERT, me.generation_id, me.member_id)
        await teller.execute("INSERT INTO mine VALUES (1)")
        commit = asyncio.create_task(transaction.commit())
        await wait_for_the_gate(dsn)
        new = await replaced(coordinator, me)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
            await commit

    assert (new.generation_id > me.generation_id, roles) == (True, ["teller"])


@pytest.mark.parametrize("lock", ["pg_advisory_lock", "pg_advisory_lock_shared"])
async def test_an_advisory_lock_of_the_gate_is_terminated(
    dsn: str, teller: asyncpg.Connection, lock: str, caplog: pytest.LogCaptureFixture
) -> None:
    roles: list[str] = []
    async with serving(dsn, on_terminated=roles.append) as coordinator:
        for shard_id in range(4):
            await teller.execute(f"SELECT {lock}(7682003, {shard_id})")
        me = await joined(coordinator)

    assert (me.generation_id, roles) == (1, ["teller"])
    assert teller.is_closed()
    said = next(record for record in caplog.records if "was terminated" in record.message)
    assert vars(said).items() >= {"role": "teller", "application": "", "shard_id": TELLERS}.items()


async def test_a_session_of_rotas_own_role_is_terminated(dsn: str) -> None:
    """Applications of small shops log in as the service does; only the service's own sessions are spared."""
    roles: list[str] = []
    application = await asyncpg.connect(dsn)
    async with serving(dsn, on_terminated=roles.append) as coordinator:
        for shard_id in range(4):
            await application.execute(f"SELECT pg_advisory_lock(7682003, {shard_id})")
        me = await joined(coordinator)

    assert (me.generation_id, roles) == (1, ["postgres"])


async def test_a_server_without_the_right_names_the_role_in_the_way(
    dsn: str, teller: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    admin = await asyncpg.connect(dsn)
    await admin.execute(
        """
        DO $$ BEGIN CREATE ROLE keeper LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
        GRANT USAGE ON SCHEMA rota TO keeper;
        GRANT ALL ON ALL TABLES IN SCHEMA rota TO keeper;
        GRANT ALL ON ALL SEQUENCES IN SCHEMA rota TO keeper;
        """
    )
    await admin.close()
    async with serving(dsn.replace("postgres@", "keeper@")) as coordinator:
        for shard_id in range(4):
            await teller.execute(f"SELECT pg_advisory_lock(7682003, {shard_id})")
        joining = asyncio.create_task(joined(coordinator))
        await until(lambda: "grant pg_signal_backend" in caplog.text)
        await teller.close()
        await asyncio.gather(joining, return_exceptions=True)

    said = next(record for record in caplog.records if "cannot be terminated" in record.message)
    assert vars(said).items() >= {"role": "teller", "application": "", "shard_id": TELLERS}.items()


@pytest.mark.parametrize(
    "call",
    [
        "SELECT rota.assert_current('other', 'tellers', 1)",
        "SELECT rota.assert_token('other', 'tellers', 1048576)",
        "SELECT rota.commit_offsets('other', 'tellers', 1, 'm', 'transfers', 0, 7)",
        """SELECT rota.commit_offsets('other', 'tellers', 1, 'm', '[{"topic": "t", "partition": 0, "offset": 1}]')""",
        "SELECT rota.committed_offset('other', 'tellers', 'transfers', 0)",
    ],
)
async def test_a_role_uses_fences_in_its_namespaces_alone(dsn: str, teller: asyncpg.Connection, call: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match="GROUP_AUTHORIZATION_FAILED: role teller") as refused:
        await teller.execute(call)

    assert refused.value.sqlstate == "RT007"
    assert refused.value.hint == "SELECT rota.grant_fences('teller', 'other');"


async def test_a_namespace_is_granted_to_members_of_a_role(dsn: str) -> None:
    committed = "SELECT rota.committed_offset('other', 'tellers', 'transfers', 0)"
    admin = await asyncpg.connect(dsn)
    await admin.execute(
        """
        DO $$ BEGIN
            CREATE ROLE clerks; CREATE ROLE clerk LOGIN IN ROLE clerks;
        EXCEPTION WHEN duplicate_object THEN NULL; END $$;
        SELECT rota.grant_fences('clerks', 'other');
        """
    )
    try:
        clerk = await asyncpg.connect(dsn, user="clerk")
        assert await clerk.fetchval(committed) == -1
        await clerk.execute("SET ROLE clerks")
        assert await clerk.fetchval(committed) == -1
        await admin.execute("SELECT rota.revoke_fences('clerks', 'other')")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await clerk.fetchval(committed)
        await clerk.close()
    finally:
        await admin.close()


@pytest.mark.parametrize("call", ["rota.grant_fences('teller', '*')", "rota.check_role('default')"])
async def test_an_application_grants_itself_nothing(teller: asyncpg.Connection, call: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await teller.execute(f"SELECT {call}")
