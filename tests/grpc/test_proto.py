"""The wire contract: a change that breaks a client is found, and the committed code is the generated code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rota.v1 import access_pb2, admin_pb2, coordinator_pb2

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
BUF = Path(sys.executable).with_name("buf")


def test_a_change_that_breaks_somebody_is_found(tmp_path: Path) -> None:
    for path in (PROTO / "buf.yaml", *PROTO.glob("rota/v1/*.proto")):
        target = tmp_path / path.relative_to(PROTO)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text().replace("int32 generation_id = 3;", "int64 generation_id = 3;"))

    command = [str(BUF), "breaking", "--against", str(PROTO / "baseline.binpb")]
    compared = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert compared.returncode == 100
    assert "generation_id" in compared.stdout


def test_the_committed_code_is_what_the_contract_generates(tmp_path: Path) -> None:
    protos = sorted(map(str, PROTO.glob("rota/v1/*.proto")))
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outs, *protos], check=True)

    generated = {path.name: path.read_text() for path in (tmp_path / "rota/v1").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "service/rota/v1").glob("*_pb2*")}

    assert generated == committed, "run make proto"


def test_go_java_and_csharp_have_a_package_to_generate_into() -> None:
    """Without `go_package` protoc refuses `--go_out`."""
    for file in (access_pb2, admin_pb2, coordinator_pb2):
        options = file.DESCRIPTOR.GetOptions()
        packages = (options.go_package, options.java_package, options.csharp_namespace)
        assert packages == ("rota/v1;rotav1", "rota.v1", "Rota.V1"), file.__name__


@pytest.mark.parametrize("service", ["GroupCoordinator", "Admin"])
def test_the_wheel_can_import_what_was_generated(service: str) -> None:
    lookup = (
        "from rota.v1 import admin_pb2, admin_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc;"
        "services = {**admin_pb2.DESCRIPTOR.services_by_name, **coordinator_pb2.DESCRIPTOR.services_by_name};"
        f"print(services['{service}'].full_name)"
    )
    printed = subprocess.run([sys.executable, "-c", lookup], capture_output=True, text=True, check=True)

    assert printed.stdout.strip() == f"rota.v1.{service}"
