"""`pip install rota` alone: the SDK with httpx, and nothing of the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.newcomer import Newcomer

MOST_DISTRIBUTIONS = 10
_LOADED = """
import importlib, json, pkgutil, sys
import rota, rota.client, rota.client.sync
rota.connect, rota.__version__
loaded = sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))
missing = {}
for module in pkgutil.walk_packages(rota.client.__path__, "rota.client."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[module.name] = error.name
print(json.dumps([loaded, missing]))
"""


def test_the_sdk_needs_only_httpx_and_grpc_is_an_extra(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path / "installed")
    environment = {"PATH": os.environ["PATH"], **newcomer.environment}

    printed = subprocess.run(
        [sys.executable, "-c", _LOADED], env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout

    loaded, missing = json.loads(printed)
    assert {"httpx", "rota"} <= set(loaded)
    assert "httpx" in newcomer.distributions
    assert len(newcomer.distributions) <= MOST_DISTRIBUTIONS
    assert {name.partition(".")[0] for name in missing.values()} <= {"google", "grpc"}
    assert all(name.startswith("rota.client.transports.") for name in missing), missing
