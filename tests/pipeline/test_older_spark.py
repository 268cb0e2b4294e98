"""Earlier releases of Spark: the tests of batches pass on each, in an environment with that release."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELEASES = ("4.0", "4.1")
BATCHES = (
    "tests/pipeline/test_spark.py",
    "tests/pipeline/test_source.py",
    "tests/pipeline/test_report.py",
)
LATER = {"4.0": "not stream and not columns_and_kinds", "4.1": "not stream"}
"""Streams need 4.2, and filters that the store compares 4.1."""

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def environment_with(release: str, folder: Path) -> Path:
    """Its Python: Spark of that release, and all else as here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", f"pyspark=={release}.*"]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


@pytest.mark.parametrize("release", RELEASES)
def test_batches_work_on_an_older_spark(release: str, tmp_path: Path) -> None:
    python = environment_with(release, tmp_path / "venv")
    version = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    # Warnings about sockets that this Spark leaves open are its own.
    command = [str(python), "-m", "pytest", "-q", "-o", "filterwarnings=default", "-m", "slow or thorough"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SPARK_"))}

    found = subprocess.run(version, capture_output=True, text=True, check=True).stdout
    done = subprocess.run(
        [*command, "-k", LATER[release], *BATCHES],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )

    assert found.startswith(release)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout
