"""The wheel, installed with its base dependencies into an environment that has nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from shutil import which

import pytest

from tests.deploy.kubernetes import REPOSITORY
from tests.processes.server import Server

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

SOURCES = "https://git.example/rota"
MOST_PACKAGES = 10
MOST_BYTES = 16_000_000
PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
PROGRAM = REPOSITORY / "tests" / "client" / "sync_program.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ROTA_REPOSITORY_URL", SOURCES)
        patched.setenv("GITHUB_REF_NAME", "v1.2.3")
        pip("wheel", "--no-deps", "--wheel-dir", folder, REPOSITORY)
    (built,) = folder.glob("rota-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--target", folder, wheel)
    return folder


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=300)


def pythons() -> list[Path]:
    """The interpreter of this run, and each other one on the PATH from 3.11 on."""
    others = [which(f"python3.{minor}") for minor in range(11, 16) if minor != sys.version_info.minor]
    answers = [
        subprocess.run((other, "-c", "import sys; print(sys.executable)"), capture_output=True, text=True, check=False)
        for other in others
        if other
    ]
    return [PYTHON, *(Path(answer.stdout.strip()) for answer in answers if answer.returncode == 0)]


def python(folder: Path, *arguments: str | Path, program: Path = PYTHON) -> subprocess.CompletedProcess[str]:
    """Run the machine's Python without its own packages: only the standard library and the folder are there."""
    command = [str(program), "-S", "-W", "error", *map(str, arguments)]
    environment = {"PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_light_install_is_small(installed: Path) -> None:
    packages = sorted(path.name for path in installed.glob("*.dist-info"))
    size = sum(path.stat().st_size for path in installed.rglob("*") if path.is_file())
    print(f"{len(packages)} packages, {size / 1e6:.1f} MB: {', '.join(packages)}")

    assert len(packages) <= MOST_PACKAGES
    assert size <= MOST_BYTES


def test_the_light_install_leads_and_works(installed: Path, shared_server: Server) -> None:
    """On each Python of the machine that the package supports."""
    tried = pythons()
    print(", ".join(map(str, tried)))
    for program in tried:
        ran = python(installed, PROGRAM, shared_server.url, program=program)

        assert ran.returncode == 0, ran.stderr
        assert "holds 2" in ran.stdout


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_REPOSITORY_URL", SOURCES)
    monkeypatch.setenv("GITHUB_REF_NAME", "v1.2.3")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=120, capture_output=True)
    [packed] = tmp_path.glob("rota-*.tar.gz")
    pip("wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", packed)

    [built] = (tmp_path / "wheels").glob("rota-*.whl")
    with zipfile.ZipFile(built) as mine, zipfile.ZipFile(wheel) as direct:
        assert sorted(mine.namelist()) == sorted(direct.namelist())
        assert {each.filename: each.CRC for each in mine.infolist() if each.filename.endswith(".py")} == {
            each.filename: each.CRC for each in direct.infolist() if each.filename.endswith(".py")
        }


def test_the_wheel_has_its_types_migrations_and_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    said = metadata_of(wheel)

    assert {"rota/py.typed", "rota/client/sync.pyi", "rota/migrations/env.py", "pyspark_rota.py"} <= names
    assert {"cli", "server", "grpc", "postgres"} <= set(said.get_all("Provides-Extra") or ())
    assert said["License-Expression"] == "Apache-2.0"


def test_the_wheel_names_its_repository_with_working_links(wheel: Path) -> None:
    said = metadata_of(wheel)

    urls = dict(line.split(", ") for line in said.get_all("Project-URL") or ())
    links = re.findall(r"\]\(([^)]+)\)", str(said.get_payload()))
    assert urls["Source"] == SOURCES
    assert urls["Changelog"] == f"{SOURCES}/blob/v1.2.3/CHANGELOG.md"
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "http://", "#"))] == []


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())
