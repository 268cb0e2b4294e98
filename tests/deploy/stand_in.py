"""`kubectl` and `helm` where there is no cluster: a folder stands for the cluster, all else is really run.

Secrets and objects lie in `$CLUSTER` as files. A command that needs more of a cluster than that is only parsed, by the
real program.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.helm import helm, kubectl
from tests.support.processes import rota_command

REPOSITORY = Path(__file__).parents[2]


def put_on_path(folder: Path) -> str:
    """Scripts of these names; the folder goes in front of PATH, and its parent takes the files that are made."""
    folder.mkdir()
    for name in ("kubectl", "helm"):
        _write(folder / name, f'PYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -m tests.deploy.stand_in {name} "$@"')
    if shutil.which("openssl") is None:
        _write(folder / "openssl", f'exec "{sys.executable}" -c "import secrets; print(secrets.token_hex(32))"')
    return str(folder)


def _write(script: Path, line: str) -> None:
    script.write_text(f"#!/bin/sh\n{line}\n")
    script.chmod(0o755)


def run_kubectl(cluster: Path, arguments: list[str]) -> int:
    match arguments:
        case ["create", "secret", *_] if "--dry-run=client" not in arguments:
            created = _output([kubectl(), *arguments, "--dry-run=client", "--output=json"])
            (cluster / f"Secret-{json.loads(created)['metadata']['name']}.json").write_text(created)
        case ["create", "secret", *_]:
            return _run([kubectl(), *arguments])
        case ["get", "secret", name, *_]:
            (value,) = json.loads((cluster / f"Secret-{name}.json").read_text())["data"].values()
            print(base64.b64decode(value).decode())
        case ["apply", "--filename", file]:
            shutil.copy(file, cluster / f"applied-{Path(file).name}")
        case ["exec", _, "--", "/usr/bin/python3", "-m", "rota", *command]:
            return _run([rota_command(), *command, "--help"], quiet=True)
        case _:
            return _run([kubectl(), *arguments, "--help"], quiet=True)
    return 0


def run_helm(cluster: Path, arguments: list[str]) -> int:
    match arguments:
        case ["install" | "upgrade", release, *rest]:
            rendered = _output([helm(), "template", release, *rest, "--namespace=prod", "--kube-version=1.37.0"])
            (cluster / f"release-{release}.yaml").write_text(rendered)
        case ["test" | "rollback" | "uninstall", *_]:
            return _run([helm(), *arguments, "--help"], quiet=True)
        case _:
            return _run([helm(), *arguments])
    return 0


def _run(command: list[str | Path], *, quiet: bool = False) -> int:
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL if quiet else None).returncode


def _output(command: list[str | Path]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    run = {"kubectl": run_kubectl, "helm": run_helm}[sys.argv[1]]
    sys.exit(run(Path(os.environ["CLUSTER"]), sys.argv[2:]))
