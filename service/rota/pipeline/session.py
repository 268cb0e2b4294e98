"""Spark in this process: with a Java that was found, settings that fit, and a quick start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from rota.pipeline.failures import PipelineFailed
from rota.pipeline.java import find_java
from rota.pipeline.tasks import Workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
}


def cache_folder() -> Path:
    """Where what makes the next start quicker is kept."""
    return platformdirs.user_cache_path("rota")


def check_java() -> None:
    """Raise `JavaMissing` where a session could not start for want of one."""
    if not _is_submitted():
        find_java(cache_folder())


def start(master: str = "", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `master`, or the one that there is.

    Under `spark-submit` or with SPARK_REMOTE, Spark knows better where it runs than we do: then only `settings` and
    what the pipeline relies on are set.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise PipelineFailed("the pipeline needs the extra: pip install 'rota[pipeline]'") from error
    builder: Any = SparkSession.builder.appName("rota")
    wanted = dict(SETTINGS)
    if not _is_submitted():
        os.environ["JAVA_HOME"] = str(find_java(cache_folder()).home)
        # Executors of local masters start this very Python, whatever `python3` on the PATH is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master or "local[*]")
        wanted |= {**_LOCAL, "spark.driver.extraJavaOptions": _java_options()}
    for name, value in {**wanted, **(settings or {})}.items():
        builder = builder.config(name, value)
    with _stderr_to(cache_folder() / "spark.log"):
        return builder.getOrCreate()  # type: ignore[no-any-return]


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let a Java that is started in the block, and the workers that it starts, write their noise to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)


@contextmanager
def session(master: str = "", settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session for the time of the block."""
    spark = start(master, settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def session_when_needed(master: str = "", settings: Mapping[str, str] | None = None) -> Iterator[Workers]:
    """Starts a session when it is called, or never: few lines need none, and Spark takes seconds and 500 MB."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(session(master, settings)))


def _is_submitted() -> bool:
    return "SPARK_REMOTE" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _java_options() -> str:
    """For commands that take seconds: no second compiler, a small collector, and no noise about native access."""
    return "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=error"
