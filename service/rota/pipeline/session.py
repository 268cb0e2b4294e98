"""Spark in this process: with a Java and Delta's jars, and settings that fit small tables."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from rota.pipeline.failures import PipelineFailed
from rota.pipeline.java import Java, delta_jars, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
SETTINGS = {
    **DELTA,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stopTimeout": "60s",
    # Of Delta's own 50 tasks for each snapshot of a table, and of a checkpoint after every ten commits.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "50",
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
}
# For commands that take seconds: no second compiler, a small collector, and no warnings about the archive of classes.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m -Xlog:disable -Xlog:all=error:stderr"
QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for many queries of few rows: to compile and to plan each of them in stages takes longer than to run it."""


def cache_folder() -> Path:
    """The folder that keeps fetched jars, and the archive of their classes."""
    return platformdirs.user_cache_path("rota")


def start(master: str = "", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `master`, or the one that this process has.

    Under `spark-submit` Spark knows better where it runs: then only `settings` and those that the pipeline relies on
    are set.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise PipelineFailed("the pipeline needs the extra: pip install 'rota[pipeline]'") from error
    builder: Any = SparkSession.builder.appName("rota")
    wanted = dict(SETTINGS)
    if not _is_submitted():
        java = find_java(cache_folder())
        os.environ["JAVA_HOME"] = str(java.home)
        # Executors of local masters start this very Python, whatever `python3` on the PATH is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master or "local[*]")
        jars = list(map(str, delta_jars(cache_folder())))
        wanted |= {**_LOCAL, "spark.driver.extraJavaOptions": f"{_JAVA} {_archive(java)}"}
        if master and not re.match(r"local(\[|$)", master):
            wanted["spark.jars"] = ",".join(jars)
        else:
            # Java archives the classes of this path only.
            wanted["spark.driver.extraClassPath"] = os.pathsep.join(jars)
            wanted["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 2))
    for name, value in {**wanted, **(settings or {})}.items():
        builder = builder.config(name, value)
    with _stderr_to(cache_folder() / "spark.log"):
        return builder.getOrCreate()  # type: ignore[no-any-return]


def _archive(java: Java) -> str:
    """The option by which Java reads its parsed classes from a file, or writes that file when it ends.

    The file is for one Java and one installation of Spark; any other Java ignores it.
    """
    import pyspark

    installed = hashlib.sha256(f"{pyspark.__file__} {java.home}".encode()).hexdigest()[:8]
    path = cache_folder() / f"spark-{pyspark.__version__}-java-{java.release}-{installed}.jsa"
    if not path.is_file():
        return f"-XX:ArchiveClassesAtExit={path}"
    with path.open("rb") as file:
        # Java writes the first bytes last.
        is_whole = any(file.read(4))
    return f"-Xshare:auto -XX:SharedArchiveFile={path}" if is_whole else f"-XX:ArchiveClassesAtExit={path}"


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


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ
