"""One Spark for all tests of a worker, and journals to read with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rota.pipeline.session import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small Spark on two threads of this machine."""
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


@pytest.fixture
def lake_folder(tmp_path: Path) -> Path:
    """Where a test keeps its tables."""
    return tmp_path / "lake"
