"""The programs of the peers, which `python -m bench.race.install` puts into build/peers: `make peers` runs it.

The versions are pinned in bench/race/peers: those of the Go modules with their checksums in go.sum, those of the jars
in pom.xml with theirs in jars.sha256. Valkey and Postgres come as wheels, as for the tests.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from bench.servers import ROOT
from rota.pipeline.failures import JavaMissing
from rota.pipeline.java import find_java

PEERS = ROOT / "build" / "peers"
PINS = Path(__file__).parent / "peers"
MODULES = {"etcd": "go.etcd.io/etcd/server/v3", "nats": "github.com/nats-io/nats-server/v2"}
JARS = ("kafka", "zookeeper")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_LIMIT_S = 1_200


class NotInstalled(Exception):
    """A peer that is not there, with the reason."""


def program(name: str) -> Path:
    """The program of a peer that is built by Go."""
    path = PEERS / "bin" / name
    if not path.exists():
        raise NotInstalled("not built: `make peers` needs Go 1.26 or later, and its module proxy")
    return path


def java_command(name: str, main_class: str) -> list[str | Path]:
    """How a peer of jars is started."""
    jars = PEERS / name
    if not jars.exists():
        raise NotInstalled("not installed: `make peers` needs Maven and Maven Central")
    try:
        java = find_java(PEERS).home / "bin" / "java"
    except JavaMissing as error:
        raise NotInstalled(str(error)) from error
    return [java, "-Xmx1g", "-Xms1g", "-cp", f"{jars}/*", main_class]


def build(name: str) -> None:
    """Build one program from its module."""
    target = PEERS / "bin" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-mod=readonly", "-trimpath", "-o", str(target), MODULES[name]]
    subprocess.run(command, cwd=PINS, check=True, timeout=_LIMIT_S)


def copy_jars(name: str) -> None:
    """Copy the jars of one peer, and leave none there unless all are those that were pinned."""
    unchecked = PEERS / f"{name}.part"
    shutil.rmtree(unchecked, ignore_errors=True)
    options = [f"-P{name}", _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={unchecked}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(PINS / "pom.xml"), *options], check=True, timeout=_LIMIT_S)
    found, pinned = _sums(name, unchecked), _pinned_sums(name)
    if found != pinned:
        wrong = sorted({line.split()[1] for line in found ^ pinned})
        raise ValueError(f"these jars are not those of jars.sha256: {', '.join(wrong)}")
    shutil.rmtree(PEERS / name, ignore_errors=True)
    unchecked.rename(PEERS / name)


def _sums(name: str, folder: Path) -> set[str]:
    return {f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {name}/{jar.name}" for jar in folder.glob("*.jar")}


def _pinned_sums(name: str) -> set[str]:
    lines = (PINS / "jars.sha256").read_text().splitlines()
    return {line for line in lines if line.split()[1].startswith(f"{name}/")}


def main() -> None:
    """Install what can be installed, and name the rest: the race goes on without it."""
    for name, install in [*((name, build) for name in MODULES), *((name, copy_jars) for name in JARS)]:
        try:
            install(name)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"the race will be without {name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
