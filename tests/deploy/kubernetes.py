"""Charts as a cluster would get them: rendered by the real helm, and judged by Kubernetes' own schemas."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml
from kubernetes_validate.utils import schema_contents
from referencing.jsonschema import DRAFT7

from tests.support.helm import helm

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "rota"
TRY_OUT = CHART / "try-out-values.yaml"
CASES = (*sorted(CHART.glob("ci/*-values.yaml")), TRY_OUT)
MINIMAL, EVERYTHING, JOB, CERTIFICATES = (
    CHART / "ci" / f"{name}-values.yaml" for name in ("minimal", "everything", "job", "certificates")
)
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
by_case = pytest.mark.parametrize("case", CASES, ids=lambda path: path.name.removesuffix("-values.yaml"))

# The oldest that the chart takes, where native sidecars came, and the newest there are schemas of.
OLDEST, SIDECARS, NEWEST = "1.25.0", "1.29.0", "1.37.0"
RELEASE, NAMESPACE = "rota", "prod"

_CRDS = Path(__file__).parent / "crds"
Manifest = dict[str, Any]


class ChartRefused(AssertionError):
    """Helm would not render it; the message is what it says."""


@cache
def run_helm(*arguments: str | Path, major: str = "4", stdin: str = "") -> str:
    """What helm prints; `ChartRefused` if it fails."""
    command = [helm(major), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ChartRefused(f"{done.stdout}{done.stderr}")
    return done.stdout


def render(
    *cases: Path,
    values: dict[str, Any] | None = None,
    chart: Path = CHART,
    version: str = NEWEST,
    major: str = "4",
    release: str = RELEASE,
) -> list[Manifest]:
    """The objects of a release: files with values, one over the other, and over them further values."""
    files = [argument for case in (*cases, "-") for argument in ("--values", case)]
    command = ("template", release, chart, "--namespace", NAMESPACE, "--kube-version", version, *files)
    rendered = run_helm(*command, major=major, stdin=json.dumps(values or {}))
    # YAML's own loader in C; it makes the same plain objects as the safe one.
    return [manifest for manifest in yaml.load_all(rendered, Loader=yaml.CSafeLoader) if manifest]


def find(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one object of a kind, or of a kind and a name; objects that are not the chart's are found by name only."""
    (found,) = (
        one for one in manifests if one["kind"] == kind and (is_of_chart(one) if name is None else _name(one) == name)
    )
    return found


def is_of_chart(manifest: Manifest) -> bool:
    """Whether the chart's templates made it, not a user's `extraObjects`."""
    return "helm.sh/chart" in manifest["metadata"].get("labels", {})


def _name(manifest: Manifest) -> str:
    name: str = manifest["metadata"]["name"]
    return name


def problems(manifest: Manifest, version: str) -> list[str]:
    """What a cluster of that version would not take; unknown fields, too."""
    kind, api_version = manifest["kind"], manifest["apiVersion"]
    custom = (_CRDS / f"{kind}.json").exists()
    validator = _of_custom(kind) if custom else _of_kubernetes(kind, api_version, version)
    return [f"{kind} {error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


def pod_templates(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod that the objects make, with what makes it."""
    for one in manifests:
        name = f"{one['kind']}/{_name(one)}"
        match one["kind"]:
            case "Pod":
                yield name, one
            case "Deployment" | "StatefulSet" | "Job":
                yield name, one["spec"]["template"]
            case "CronJob":
                yield name, one["spec"]["jobTemplate"]["spec"]["template"]


def containers(pod: Manifest) -> list[Manifest]:
    """Those that come first, then the others."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@cache
def _of_kubernetes(kind: str, api_version: str, version: str) -> jsonschema.Draft202012Validator:
    """As kubernetes-validate does it, but every schema is read once."""
    group = re.sub(r"(\.[^/]*)?/", "-", api_version)
    schema = _schema(f"{kind.lower()}-{group}", version)
    definitions = referencing.Resource.from_contents(_schema("_definitions", version))
    return jsonschema.Draft202012Validator(schema, registry=definitions @ referencing.Registry())


@cache
def _schema(name: str, version: str) -> Any:
    return schema_contents(f"kubernetes-json-schema/v{version}-local-strict/{name}.json", version)


@cache
def _of_custom(kind: str) -> jsonschema.Draft7Validator:
    """Of objects that operators bring: what the chart uses of them, written down beside this file."""
    schemas = {path.name: json.loads(path.read_text()) for path in _CRDS.glob("*.json")}
    registry = referencing.Registry().with_resources(
        (name, DRAFT7.create_resource(schema)) for name, schema in schemas.items()
    )
    return jsonschema.Draft7Validator(schemas[f"{kind}.json"], registry=registry)
