"""The objects of a store's schema (tables, indexes, functions, triggers, …), compared with those of this release.

`migrations/objects.json` lists those that the migrations make, by name, each with its definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.replica.ports import StoreRefused
from rota.storage.migrate import migrations_folder, read_status, transaction
from rota.storage.schema import POSTGRES_SCHEMA, store
from rota.storage.urls import StoreLocation, parse_store_url

RELEASED = "objects.json"
_NAMED = 5
SQLITE_OBJECTS = (
    "SELECT upper(type) || ' ' || name, coalesce(sql, '') FROM {}sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"
)
_DAY = re.compile(r"\bgroup_events_\d{8}(?!\d)")
"""One of the journal's partitions; all of them are alike."""

# Named as in the list of contents of a dump, so that a dump is compared with the same names. The definitions read the
# same in each release of Postgres: NOT NULL is a constraint of its own since 18, and belongs to the column here.
_POSTGRES_OBJECTS = text(
    f"""
WITH schema AS (SELECT oid FROM pg_namespace WHERE nspname = '{POSTGRES_SCHEMA}'),
own AS (SELECT c.* FROM pg_class AS c JOIN schema ON c.relnamespace = schema.oid)
SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
        WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END || ' ' || relname,
    concat_ws(' ', relpersistence, relispartition, relrowsecurity, relforcerowsecurity, pg_get_partkeydef(own.oid),
        (SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
                attgenerated, attcollation::regcollation, pg_get_expr(adbin, adrelid)), ', ' ORDER BY attname)
            FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
            WHERE attrelid = own.oid AND attnum > 0 AND NOT attisdropped),
        (SELECT string_agg(pg_get_constraintdef(oid), ', ' ORDER BY conname) FROM pg_constraint
            WHERE conrelid = own.oid AND contype = 'c'))
FROM own WHERE relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
UNION ALL
SELECT 'INDEX ' || relname, pg_get_indexdef(own.oid) FROM own WHERE relkind IN ('i', 'I')
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = own.oid AND conrelid IN (SELECT oid FROM own))
UNION ALL
SELECT CASE contype WHEN 'f' THEN 'FK ' ELSE '' END || 'CONSTRAINT '
        || coalesce((SELECT relname::text FROM own WHERE oid = conrelid), conrelid::regclass::text) || ' ' || conname,
    pg_get_constraintdef(oid)
FROM pg_constraint WHERE contype IN ('p', 'u', 'x', 'f')
    AND (conrelid IN (SELECT oid FROM own) OR confrelid IN (SELECT oid FROM own))
UNION ALL
SELECT 'TRIGGER ' || relname || ' ' || tgname, concat_ws(' ', tgenabled, pg_get_triggerdef(pg_trigger.oid))
FROM pg_trigger JOIN own ON own.oid = tgrelid WHERE NOT tgisinternal
UNION ALL
SELECT 'RULE ' || relname || ' ' || rulename, concat_ws(' ', ev_enabled, pg_get_ruledef(pg_rewrite.oid))
FROM pg_rewrite JOIN own ON own.oid = ev_class WHERE relkind NOT IN ('v', 'm')
UNION ALL
SELECT 'POLICY ' || relname || ' ' || polname, concat_ws(' ', polcmd, pg_get_expr(polqual, polrelid))
FROM pg_policy JOIN own ON own.oid = polrelid
UNION ALL
SELECT CASE prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END || ' '
        || proname || '(' || oidvectortypes(proargtypes) || ')',
    concat_ws(' ', lanname, prosecdef, provolatile, proisstrict, proretset, prorettype::regtype, proargnames, proconfig,
        pg_get_expr(proargdefaults, 0), probin, prosrc, pg_get_function_sqlbody(pg_proc.oid))
FROM pg_proc JOIN schema ON pronamespace = schema.oid JOIN pg_language ON pg_language.oid = prolang
UNION ALL
SELECT 'TABLE ' || inhrelid::regclass::text, 'a part of ' || inhparent::regclass::text
FROM pg_inherits WHERE inhparent IN (SELECT oid FROM own) AND inhrelid NOT IN (SELECT oid FROM own)
UNION ALL
SELECT upper(found.type) || ' ' || found.identity, '' FROM schema, pg_depend,
    pg_identify_object(pg_depend.classid, pg_depend.objid, pg_depend.objsubid) AS found
WHERE refclassid = 'pg_namespace'::regclass AND refobjid = schema.oid
    AND classid NOT IN ('pg_class'::regclass, 'pg_proc'::regclass)
""".replace(":", r"\:")
)


async def read_objects(connection: AsyncConnection) -> dict[str, str]:
    """The objects of the schema that this transaction sees: their names and definitions."""
    is_sqlite = connection.dialect.name == "sqlite"
    found = await connection.execute(text(SQLITE_OBJECTS.format("")) if is_sqlite else _POSTGRES_OBJECTS)
    return {name: generic(definition) for name, definition in found}


def generic(words: str) -> str:
    """A name or a definition that all of the journal's partitions share."""
    return _DAY.sub("group_events_DAY", words)


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """One sentence for each object that is foreign, changed or missing. An empty definition stands for any."""
    released = {generic(name): definition for name, definition in expected.items()}
    missing = released.keys() - {generic(name) for name in found}
    return [
        *(f"it has the {name}, which Rota does not make" for name in sorted(found) if generic(name) not in released),
        *(
            f"its {name} is not as this release of Rota makes it"
            for name in sorted(found)
            if found[name] and found[name] != released.get(generic(name), found[name])
        ),
        *(f"it lacks the {name}" for name in sorted(missing) if "_DAY" not in name),
    ]


def refuse_differences(source: Path, wrong: Sequence[str]) -> None:
    """Raise `StoreRefused` for a backup with objects that are not those of the release."""
    if wrong:
        objects = "; ".join(wrong[:_NAMED])
        raise StoreRefused(
            f"{source} is no backup of a store that Rota alone has changed: {objects}. Nothing was changed"
        )


async def check_objects(store_url: str) -> list[str]:
    """`differences` of a store; a schema of a later release is not compared. Only reads."""
    found: list[str] = (await describe(parse_store_url(store_url)))["foreign_objects"]
    return found


async def describe(location: StoreLocation) -> dict[str, Any]:
    """Facts of a store for the manifest of a backup. Objects of another schema than this release's are not compared."""
    async with transaction(location, writes=False) as connection:
        status = await connection.run_sync(read_status)
        released = json.loads((migrations_folder() / RELEASED).read_text())[connection.dialect.name]
        return {
            "schema": status.current,
            "incarnation": await connection.scalar(select(store.c.incarnation)),
            "foreign_objects": differences(await read_objects(connection), released) if status.up_to_date else [],
        }
