"""Writes the list of the objects that this release's migrations make: `migrations/objects.json`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from rota.storage.migrate import migrations_folder, single_engine, upgrade
from rota.storage.objects import RELEASED, generic, read_objects
from rota.storage.urls import parse_store_url
from tests.support.postgres import PostgresServer


async def objects_made(url: str) -> dict[str, str]:
    await upgrade(url)
    engine = single_engine(parse_store_url(url), writes=False)
    async with engine.begin() as connection:
        found = await read_objects(connection)
    await engine.dispose()
    return {generic(name): definition for name, definition in found.items()}


def write(path: Path) -> None:
    with TemporaryDirectory() as folder, PostgresServer(durable=False) as server:
        made = {
            "postgresql": asyncio.run(objects_made(server.create_database())),
            "sqlite": asyncio.run(objects_made(f"sqlite:///{folder}/rota.db")),
        }
    path.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write(migrations_folder() / RELEASED)
