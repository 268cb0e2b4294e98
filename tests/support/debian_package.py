"""Programs that come as Debian packages only, unpacked inside the virtual environment: needs no root, installs nothing.

`python -m tests.support.debian_package pgbouncer` is run by make before the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_UNPACKED = Path(sys.prefix) / "debian"
_PACKAGES = {
    "ip": ("iproute2",),
    "nft": ("nftables",),
    "promtool": ("prometheus",),
    "haproxy": ("haproxy", "libopentracing1"),
    "chromium-headless-shell": ("chromium-headless-shell", "fonts-dejavu-core"),
}
"""Where a program comes in a package of another name, or in more than it names itself."""
_DEEP = {"chromium-headless-shell", "iproute2", "nftables"}
"""Packages with libraries that need libraries: apt works out all that this machine lacks."""


def program(name: str) -> tuple[Path, dict[str, str]]:
    """A program that is installed or was unpacked, and the environment that it needs to find its libraries."""
    if (installed := _installed(name)) is not None:
        return installed, {}
    unpacked = _unpacked(name)
    assert unpacked is not None, f"{name} is neither installed nor unpacked; {_hint(name)}"
    libraries = {str(library.parent) for library in _UNPACKED.glob("**/lib*.so*")}
    return unpacked, {"LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))}


def unpack(*packages: str) -> None:
    """Download packages and the libraries they need from the distribution's archive, and unpack them."""
    with tempfile.TemporaryDirectory(prefix="rota-debian-") as directory:
        downloads = Path(directory)
        try:
            _download(packages, downloads, [])
        except subprocess.CalledProcessError:
            # A fresh machine has no lists of packages, and only root could renew the system's.
            own_lists = _options_of_own_lists(downloads)
            _run(["apt-get", *own_lists, "update"], downloads)
            _download(packages, downloads, own_lists)
        for archive in downloads.glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(archive), str(_UNPACKED)], downloads)


def _download(packages: tuple[str, ...], into: Path, options: list[str]) -> None:
    # As root, apt would do it as a user that may not enter our directory, and complains about that.
    apt_get = ["apt-get", *options, "-o", "APT::Sandbox::User=root"]
    if _DEEP.isdisjoint(packages):
        needed = [*packages, *_libraries_of(_run(["apt-cache", *options, "depends", *packages], into))]
        _run([*apt_get, "download", *needed], into)
        return
    (into / "partial").mkdir(exist_ok=True)
    apt_get += ["-o", f"Dir::Cache::archives={into}", "-o", "Debug::NoLocking=1", "--yes", "--no-install-recommends"]
    _run([*apt_get, "--download-only", "install", *packages], into)


def _libraries_of(depends: str) -> list[str]:
    """What `apt-cache depends` names, but for the C library, without which nothing here would run."""
    named = (
        line.removeprefix("Depends:").strip() for line in map(str.strip, depends.splitlines()) if "Depends:" in line
    )
    return sorted(name for name in named if name.startswith("lib") and not name.startswith(("libc6", "libjs-")))


def _options_of_own_lists(directory: Path) -> list[str]:
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    places = {
        "Dir::State": directory / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": directory / "cache",
    }
    return [option for name, place in places.items() for option in ("-o", f"{name}={place}")]


def _unpacked(name: str) -> Path | None:
    # Links of a package lead to where it would be installed.
    found = (path for folder in ("usr/*bin", "bin", "sbin") for path in _UNPACKED.glob(f"{folder}/{name}"))
    return next((path for path in found if path.exists()), None)


def _installed(name: str) -> Path | None:
    # Not every user has the folders of servers on the PATH.
    found = shutil.which(
        name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    )
    return None if found is None else Path(found)


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    return done.stdout


def _hint(name: str) -> str:
    return f"on Debian and Ubuntu make test unpacks it, elsewhere install {name} and have it on the PATH"


def main(names: list[str]) -> None:
    """Where a package cannot be had, say so and let all the other tests run."""
    for name in names:
        if _installed(name) or _unpacked(name):
            continue
        try:
            unpack(*_PACKAGES.get(name, (name,)))
        except (OSError, subprocess.SubprocessError) as error:
            print(f"cannot get {name} ({error}); {_hint(name)}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
