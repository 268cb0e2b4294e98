"""Packages of the examples, installed into a folder of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def installed_package(source: Path, folder: Path) -> Path:
    """The folder that the package is installed in, built from a copy and without asking any registry."""
    shutil.copytree(source, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps", "--quiet"]
    site = folder / "site"
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(site), str(folder / "source")], check=True, timeout=120
    )
    return site
