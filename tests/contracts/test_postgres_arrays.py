"""Columns travel to Postgres as the text of an array: it reads what was written."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import asyncpg
import pytest
from sqlalchemy import BigInteger, LargeBinary, Text
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from rota.storage.bulk import array_text

PIECES = [
    '"',
    "\\",
    "{",
    "}",
    ",",
    "NULL",
    "null",
    " ",
    "\n",
    "\t",
    "'",
    "ü",
    "\U0001f600",
    "\x7f",
    "\x01",
    "a",
    "x41",
    "",
]
BYTES = [b"", b"\x00", b"\\", b'"', b"\xff\x00", b"{,}", bytes(range(256))]


def texts(random: Random) -> str:
    return "".join(random.choices(PIECES, k=random.randint(0, 6)))


def numbers(random: Random) -> int:
    return random.choice([0, 1, -1, 2**31, 2**63 - 1, -(2**63), random.randint(0, 10**9)])


def octets(random: Random) -> bytes:
    return random.choice(BYTES)


KINDS: dict[str, tuple[TypeEngine[Any], str, Callable[[Random], Any]]] = {
    "text": (Text(), "text[]", texts),
    "name": (Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"), "text[]", texts),
    "number": (BigInteger(), "bigint[]", numbers),
    "bytes": (LargeBinary(), "bytea[]", octets),
}


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_postgres_reads_the_values_that_were_written(kind: str, has_nulls: bool, postgres_dsn: str) -> None:
    type_, name, draw = KINDS[kind]
    random = Random(f"{kind} {has_nulls}")
    columns = [[draw(random) for _ in range(random.randint(1, 9))] for _ in range(100)]
    if has_nulls:
        columns = [[None if random.random() < 0.4 else value for value in column] for column in columns]

    assert await read_back(postgres_dsn, name, [array_text(type_, column) for column in columns]) == columns


async def read_back(dsn: str, name: str, written: list[str]) -> list[list[Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [await connection.fetchval(f"SELECT CAST($1::text AS {name})", text) for text in written]
    finally:
        await connection.close()


@pytest.mark.parametrize("values", [["a\0b"], ["a", "\0"], ["\0"] * 3, [None, "\0"]])
def test_a_text_with_a_nul_is_an_error(values: list[str | None]) -> None:
    """Postgres has no such text. Here it would end an element."""
    type_: TypeEngine[Any] = Text()

    with pytest.raises(UnicodeError, match="NUL"):
        array_text(type_, values)
