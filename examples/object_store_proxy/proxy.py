"""An object store that refuses stale writers: a proxy in front of a folder, which could as well be a bucket.

    pip install 'rota[fencing]' && uvicorn --factory examples.object_store_proxy.proxy:create_proxy

A writer sends its signed token with each PUT. The proxy never asks the server about a write: it fetches the public keys
now and then, and keeps with its objects the highest generation that it has let through.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

from rota.fencing.errors import FenceRefused, InvalidToken
from rota.fencing.published import PublishedKeys
from rota.fencing.tokens import Fence

SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, content BLOB NOT NULL, generation INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS fences (name TEXT PRIMARY KEY, generation INTEGER NOT NULL);
"""


class Generations(MutableMapping[str, int]):
    """The highest generation by `namespace/group`, in the same transaction as the objects."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __getitem__(self, name: str) -> int:
        row = self._database.execute("SELECT generation FROM fences WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise KeyError(name)
        return int(row[0])

    def __setitem__(self, name: str, generation: int) -> None:
        self._database.execute("INSERT OR REPLACE INTO fences VALUES (?, ?)", (name, generation))

    def __delitem__(self, name: str) -> None:
        raise TypeError("a fence is never taken down")

    def __iter__(self) -> Iterator[str]:
        return (row[0] for row in self._database.execute("SELECT name FROM fences"))

    def __len__(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM fences").fetchone()[0])


def create_proxy(path: Path | None = None, rota_url: str | None = None) -> FastAPI:
    """The proxy, on a file of objects. Objects below `GROUP/…` belong to the group of that name."""
    file = path or Path(os.environ.get("OBJECTS", "objects.db"))
    keys = PublishedKeys(rota_url or os.environ.get("ROTA_URL", "http://localhost:8080"))
    with closing(sqlite3.connect(file)) as database:
        database.executescript(SCHEMA)
    app = FastAPI(title="A fenced object store")

    def store(name: str, content: bytes, token: str) -> int:
        # One transaction that no other writer can come between: the look at the fence, the fence, and the object.
        with closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            admitted = Fence(keys, highest=Generations(database)).admit(token, group_id=name.partition("/")[0])
            row = (name, content, admitted.generation_id)
            database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", row)
            database.execute("COMMIT")
            return admitted.generation_id

    @app.put("/objects/{name:path}")
    async def put(name: str, request: Request, rota_fencing_token: Annotated[str, Header()] = "") -> dict[str, int]:
        content = await request.body()
        try:
            return {"generation": await run_in_threadpool(store, name, content, rota_fencing_token)}
        except InvalidToken as refused:
            raise HTTPException(401, str(refused)) from refused
        except FenceRefused as refused:
            raise HTTPException(412, str(refused)) from refused

    @app.get("/objects/{name:path}")
    def get(name: str) -> Response:
        with closing(sqlite3.connect(file)) as database:
            row = database.execute("SELECT content, generation FROM objects WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise HTTPException(404, "no such object")
        return Response(row[0], headers={"rota-generation": str(row[1])})

    return app
