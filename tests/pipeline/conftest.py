"""One Spark for all tests of a worker, and journals to read with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rota.demo.workload.generate import generate
from rota.pipeline.failures import JarsMissing
from rota.pipeline.java import delta_jars
from rota.pipeline.session import cache_folder, start
from tests.pipeline.journals import fleet
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small Spark on two threads of this machine. A machine that cannot fetch Delta's jars skips its tests."""
    try:
        delta_jars(cache_folder())
    except JarsMissing as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("spark")
    session = start(
        "local[2]",
        {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder),
        },
    )
    yield session
    session.stop()
    os.environ.pop("JAVA_HOME", None)


@pytest.fixture(scope="session")
def _filled_database(postgres_server: PostgresServer) -> str:
    """The name of a database with the journal of a small fleet, for copying."""
    generate(fleet(postgres_server.create_database("pipeline_template")), processes=1)
    return "pipeline_template"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, _filled_database: str) -> Iterator[str]:
    """A store in Postgres, with a journal of two shards."""
    dsn = postgres_server.create_database(template=_filled_database)
    yield dsn
    postgres_server.drop_database(dsn.rpartition("/")[2])


@pytest.fixture
def lake_folder(tmp_path: Path) -> Path:
    """Where a test keeps its tables."""
    return tmp_path / "lake"
