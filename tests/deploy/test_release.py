"""What a tag publishes: one version in all places, notes from the changelog, and workflows with steps that exist."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes import REPOSITORY, render
from tests.support.helm import helm

GITHUB = REPOSITORY / ".github"
FROM_THE_INDEX = re.compile(
    r"\b(pip|uv|make|hatchling|pip-audit|pipx|npx|python)\b|\.venv|\.ci/run|setup-python|matrix\.command"
)
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
VERSION: str = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
release_notes: Any = importlib.import_module("requirements.release_notes")


def check_schema(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("check-jsonschema")
    command: list[str | Path] = [program, "--builtin-schema", f"vendor.{schema}", *files]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def commands_of(workflow: str) -> str:
    """All that a workflow runs in shells, with what its matrix names."""
    document = yaml.safe_load((GITHUB / "workflows" / workflow).read_text())
    lines = []
    for job in document["jobs"].values():
        lines += [step["run"] for step in job["steps"] if "run" in step]
        lines += [
            each["command"]
            for each in job.get("strategy", {}).get("matrix", {}).get("include", ())
            if "command" in each
        ]
    return "\n".join(lines)


def test_one_version_is_in_all_places_and_has_notes() -> None:
    done = subprocess.run(
        [sys.executable, "requirements/release_notes.py", f"v{VERSION}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("### Added\n")


def test_a_tag_of_another_version_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"v9\.9\.9 is not the version of"):
        release_notes.main("v9.9.9")


@pytest.mark.thorough
def test_workflows_and_forms_are_valid() -> None:
    forms = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(WORKFLOWS) >= 4
    assert len(forms) == 2

    checked = [
        check_schema("github-workflows", *WORKFLOWS),
        check_schema("github-issue-forms", *forms),
        check_schema("github-issue-config", GITHUB / "ISSUE_TEMPLATE" / "config.yml"),
    ]

    assert [each.stdout for each in checked if each.returncode] == []


def test_workflows_run_what_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(commands_of(path.name) for path in WORKFLOWS)

    made = set(re.findall(r"\bmake ([a-z-]+)", commands))
    named = re.findall(r"\b(?:requirements|deploy|helm)/[\w./-]*[\w-]", commands)
    assert made <= targets
    assert {"test-all", "torture", "bench", "sim"} <= made
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_the_release_names_its_images_and_needs_no_index_token() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]

    files = [each["file"] for each in jobs["images"]["strategy"]["matrix"]["include"]]
    assert [file for file in files if not (REPOSITORY / file).exists()] == []
    assert {"package", "charts"} <= set(jobs["publish"]["needs"])
    assert jobs["publish"]["environment"] == "pypi"
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text()


def test_a_wrong_tag_or_a_failing_test_publishes_nothing() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]

    needs = {
        name: {job["needs"]} if isinstance(job.get("needs"), str) else {*job.get("needs", ())}
        for name, job in jobs.items()
    }
    for _ in jobs:
        needs = {name: direct.union(*(needs[each] for each in direct)) for name, direct in needs.items()}
    publishing = [name for name, job in jobs.items() if "write" in (job.get("permissions") or {}).get("packages", "")]
    assert {"images", "charts"} <= {*publishing}
    assert [name for name in (*publishing, "publish") if not {"tests", "package"} <= needs[name]] == []


@pytest.mark.thorough
def test_the_published_chart_has_the_image_and_runbooks_of_its_release(tmp_path: Path) -> None:
    """The workflow's own step, on a copy."""
    shutil.copytree(REPOSITORY / "helm", tmp_path / "helm")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").symlink_to(helm("3"))
    jobs = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]
    [step] = [step["run"] for step in jobs["charts"]["steps"] if step.get("name") == "Package the charts"]
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GITHUB_REF_NAME": "v9.8.7",
        "GITHUB_REPOSITORY": "Some-Owner/rota",
        "GITHUB_REPOSITORY_OWNER": "Some-Owner",
        "GITHUB_SERVER_URL": "https://git.example",
    }
    subprocess.run(["bash", "-e", "-c", step], cwd=tmp_path, env=environment, check=True, timeout=60)

    assert {path.name for path in (tmp_path / "charts").iterdir()} == {"rota-9.8.7.tgz", "rota-sidecar-9.8.7.tgz"}
    values = {
        "access": {"allowAnonymous": True},
        "store": {"existingSecret": "rota"},
        "peer": {"existingSecret": "rota"},
        "prometheusRule": {"enabled": True},
    }
    manifests = render(chart=tmp_path / "charts" / "rota-9.8.7.tgz", values=values)
    [server] = [each for each in manifests if each["kind"] == "Deployment"]
    images = {each["image"] for each in server["spec"]["template"]["spec"]["containers"]}
    assert images == {"ghcr.io/some-owner/rota:9.8.7"}
    [rules] = [each for each in manifests if each["kind"] == "PrometheusRule"]
    links = {rule["annotations"]["runbook_url"] for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert {
        link for link in links if not link.startswith("https://git.example/Some-Owner/rota/blob/v9.8.7/docs/")
    } == set()


def test_actions_are_pinned_by_digest() -> None:
    """A tag can be moved to other code. The comment names the release, for people and for the bot that renews both."""
    used = [line for path in GITHUB.rglob("*.y*ml") for line in re.findall(r"\buses: *(.*)", path.read_text())]
    pinned = [re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line) for line in used]

    assert len(used) >= 10
    assert [line for line, is_pinned in zip(used, pinned, strict=True) if not is_pinned] == []
    # One release of each action, in all workflows.
    assert len({each.groups() for each in pinned if each}) == len({each[1] for each in pinned if each})


def test_what_the_package_index_brings_runs_without_rights() -> None:
    """Its tools could change the repository, a release or a signature, with the rights of the job that runs them."""
    rights: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        document = yaml.safe_load(path.read_text())
        for name, job in document["jobs"].items():
            granted = job.get("permissions", document["permissions"])
            may_write = (
                granted if isinstance(granted, str) else {right for right in granted if granted[right] == "write"}
            )
            tools = [step for step in job["steps"] if FROM_THE_INDEX.search(step.get("run", "") + step.get("uses", ""))]
            stored = [
                step
                for step in job["steps"]
                if "actions/checkout@" in step.get("uses", "")
                and step.get("with", {}).get("persist-credentials") is not False
            ]
            rights[f"{path.stem}/{name}"] = {*may_write}
            assert not (tools and may_write), (path.name, name)
            assert not stored or "contents" in may_write, (path.name, name)

    assert rights["locks/propose"] == {"contents", "pull-requests"}
    assert rights["locks/resolve"] == rights["release/package"] == rights["ci/run"] == set()
