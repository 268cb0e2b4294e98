"""Alerts, dashboards and runbooks: they speak of metrics that there are, fire when they should, and belong together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rota.client.metrics import METRICS
from rota.pipeline.metrics import Metrics as PipelineMetrics
from tests.docs.pages import blocks_of
from tests.support.debian_package import program
from tests.support.ports import free_port
from tests.support.processes import Processes

REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "helm" / "rota" / "files" / "rules.yaml"
DASHBOARDS = sorted((REPOSITORY / "helm" / "rota" / "files" / "dashboards").glob("*.json"))
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
ALERT_TESTS = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))
HOW_TO = REPOSITORY / "docs" / "how-to" / "observe.md"
MEMBER_ALERTS = Path(__file__).parent / "member_alerts.yaml"
CLI = REPOSITORY / "docs" / "reference" / "cli.md"
OF_PROMETHEUS = {"namespace", "job", "instance", "le"}
"""Labels that the scraper adds, and that of a histogram's buckets."""

_METRIC = re.compile(r"\b(?:rota|process)_[a-z_]+\b(?=[{\[)\s]|$)(?:\{([^}]*)\})?")


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def expressions() -> Iterator[str]:
    """Every piece of PromQL in the rules and the dashboards."""
    yield from (rule["expr"] for rule in alerts().values())
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboard.read_text())["panels"]:
            yield from (target["expr"] for target in panel.get("targets", ()))


def used_metrics() -> dict[str, set[str]]:
    """What the expressions select, and the labels by which they do."""
    used: dict[str, set[str]] = {}
    for expression in expressions():
        for match in _METRIC.finditer(expression):
            name = re.sub(r"_(bucket|count|sum)$", "", match[0].partition("{")[0])
            used.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", match[1] or ""))
    return used


def unknown_commands(text: str) -> list[str]:
    """Commands of `rota` in a text that the command line does not have."""
    headings = re.findall(r"^## rota ([\w -]+)$", CLI.read_text(), re.MULTILINE)
    groups = {heading.partition(" ")[0] for heading in headings if " " in heading}
    typed = re.findall(r"\brota ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", text)
    named = [f"{first} {second}".strip() if first in groups else first for first, second in typed]
    return [command for command in named if command not in headings]


def promtool(*arguments: str | Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command, env = program("promtool")
    return subprocess.run([command, *arguments], input=stdin, env=env, capture_output=True, timeout=600, check=False)


@pytest.mark.thorough
def test_every_metric_that_is_used_is_one_of_a_live_server(processes: Processes, tmp_path: Path) -> None:
    port = free_port()
    server = processes.rota("serve", "--store", f"sqlite:///{tmp_path}/rota.db", "--http", f"127.0.0.1:{port}")
    server.wait_for_url(f"http://127.0.0.1:{port}/readyz")

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        exposed = answer.read()

    of_pipeline = {each.name for metric in PipelineMetrics().registry.collect() for each in metric.samples}
    reported = {*re.findall(r"^# TYPE (\w+)", exposed.decode(), re.MULTILINE), *of_pipeline}
    assert len(used_metrics()) > 20
    assert used_metrics().keys() <= reported
    assert (checked := promtool("check", "metrics", stdin=exposed)).returncode == 0, checked.stderr + checked.stdout


def test_every_label_that_is_selected_by_is_one_of_its_metric() -> None:
    page = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", page, re.MULTILINE)
    labels = {name: set(reported.split(", ")) for name, reported in rows}

    wrong = {
        (metric, label)
        for metric, selected in used_metrics().items()
        for label in selected - OF_PROMETHEUS
        if label not in labels.get(metric, set())
    }

    assert wrong == set()


@pytest.mark.thorough
def test_promtool_accepts_the_alerts_and_each_fires_when_due() -> None:
    assert (checked := promtool("check", "rules", RULES)).returncode == 0, checked.stderr
    assert (played := promtool("test", "rules", *ALERT_TESTS)).returncode == 0, played.stdout + played.stderr

    tested = set()
    for path in ALERT_TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            tested |= {one["alertname"] for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert tested == alerts().keys()


def test_the_how_tos_alerts_on_members_fire_when_they_should(tmp_path: Path) -> None:
    [rules] = [block.text for block in blocks_of(HOW_TO) if block.language == "yaml"]
    (tmp_path / "rules.yaml").write_text(rules)
    cases = yaml.safe_load(MEMBER_ALERTS.read_text())
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({**cases, "rule_files": ["rules.yaml"]}))

    assert (played := promtool("test", "rules", tmp_path / "tests.yaml")).returncode == 0, played.stdout + played.stderr

    fired = {one["alertname"] for one in cases["tests"][0]["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in yaml.safe_load(rules)["groups"][0]["rules"]}
    assert set(re.findall(r"rota_client_\w+", rules)) <= {metric.name for metric in METRICS}


def test_every_query_of_a_dashboard_is_promql(tmp_path: Path) -> None:
    """As rules, promtool reads them; what Grafana puts in is put in here."""
    filled = [
        expression.replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$job", ".*")
        for expression in expressions()
    ]
    rules = [{"record": f"query:{number}", "expr": expression} for number, expression in enumerate(filled)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    checked = promtool("check", "rules", tmp_path / "rules.yaml")

    assert checked.returncode == 0, checked.stderr
    assert "$" not in "".join(filled)


def test_the_dashboards_are_what_the_code_would_write() -> None:
    script = REPOSITORY / "deploy" / "grafana" / "dashboards.py"
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stderr


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    index = (RUNBOOKS / "README.md").read_text()

    assert pages == alerts().keys()
    for name, rule in alerts().items():
        severity = rule["labels"]["severity"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        assert f"# {name}\n\nSeverity: {severity}.\n" in (RUNBOOKS / f"{name}.md").read_text()
        assert f"| [{name}]({name}.md) | {severity} | {rule['annotations']['summary']} |" in index


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_what_a_runbook_names_is_there(page: Path) -> None:
    """Other pages, commands and metrics."""
    text = page.read_text()
    reference = REPOSITORY / "docs" / "reference"
    metrics = set(re.findall(r"`(\w+)`", (reference / "metrics.md").read_text()))

    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).is_file(), link
    for name in re.findall(r"\brota_[a-z_]+\b", text):
        assert re.sub(r"_(bucket|count|sum)$", "", name) in metrics, name
    assert unknown_commands("; ".join(re.findall(r"`(rota [^`]+)`", text))) == []


def test_every_alert_says_what_to_type() -> None:
    [of_members] = [yaml.safe_load(block.text) for block in blocks_of(HOW_TO) if block.language == "yaml"]
    rules = [*alerts().values(), *of_members["groups"][0]["rules"]]
    typed = {rule["alert"]: rule["annotations"]["description"].partition("ype: ")[2] for rule in rules}

    assert [name for name, commands in typed.items() if not commands] == []
    assert {name: unknown for name, commands in typed.items() if (unknown := unknown_commands(commands))} == {}
