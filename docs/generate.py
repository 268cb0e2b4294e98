"""Writes what is generated for readers, or says with --check what of it is out of date.

That is the references under docs/reference, and the types of the sync SDK (`sync_stub.py`).

A page is a function without arguments that returns its text; `PAGES` names the file of each.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

sys.path.insert(0, str(Path(__file__).parents[1]))
from docs.api_reference import body_of, dump_openapi, grpc_rows, http_rows
from docs.defaults_table import defaults_table
from docs.sdk_reference import sdk_parts
from docs.sync_stub import STUB, sync_stub

REFERENCE = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by docs/generate.py (make docs): change the code instead. -->"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def page(title: str, *parts: str) -> str:
    """A page in Markdown."""
    return "\n\n".join((f"# {title}", _NOTE, *parts)) + "\n"


# --- the command line ----------------------------------------------------------------------------


_COMMON = 2
"""An option that so many commands have with the same meaning is described once, above them."""
_ROOT = ("--url", "--namespace", "--output")
"""Options of `rota` itself, which may also follow the command."""


def cli() -> str:
    """Every command with its arguments and options, as Typer knows them."""
    import typer

    from rota.agents.exec.ending import EXIT_MEANINGS as EXEC_MEANINGS
    from rota.cli.commands import app
    from rota.cli.exits import EXIT_MEANINGS

    commands = list(_walk(("rota",), typer.main.get_command(app)))
    options = (
        each
        for _, command in commands
        for each in _described(command)
        if each.param_type_name == "option" and each.opts[0] not in _ROOT
    )
    met = Counter(map(_parameter, options))
    common = sorted(item for item, count in met.items() if count >= _COMMON)
    exits = table(("code", "meaning"), ((int(code), meaning) for code, meaning in EXIT_MEANINGS.items()))
    exec_exits = table(("code", "meaning"), EXEC_MEANINGS.items())
    exec_title = "Also of `rota lead` and `rota work`, which otherwise end as their command does (128 + N by signal N):"
    return page(
        "The command line",
        "A variable in brackets is the environment's. `--url`, `--namespace` and `--output` may also follow a command "
        "that talks to a server. These options mean the same for each command that names them:",
        "\n".join(common),
        *(_command(names, command, set(common)) for names, command in commands),
        "## Exit codes",
        exits,
        exec_title,
        exec_exits,
    )


def _walk(names: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _walk((*names, name), child)


def _command(names: tuple[str, ...], command: Any, common: set[str]) -> str:
    arguments = [parameter.metavar for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join((*names, *arguments, *["COMMAND"] * hasattr(command, "commands")))
    parts = [f"## {' '.join(names)}", f"`{usage}`", _unwrapped(command.help or "")]
    if names == ("rota", "serve"):
        return "\n\n".join((*parts, "Its options are the [settings](settings.md): `ROTA_LEASE_MS` is `--lease-ms`."))
    shown = [each for each in _described(command) if names == ("rota",) or each.opts[0] not in _ROOT]
    items = {_parameter(each): each for each in shown}
    parts.append("\n".join(item for item in items if item not in common))
    if also := [f"`{each.opts[0]}`" for item, each in items.items() if item in common]:
        parts.append(f"Also: {', '.join(also)}.")
    return "\n\n".join(part for part in parts if part)


def _described(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.help and not _is_completion(parameter)]


def _is_completion(parameter: Any) -> bool:
    return parameter.name in ("install_completion", "show_completion", "help")


def _parameter(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = [parameter.metavar] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    default = "" if is_argument or parameter.default in (None, False, "") else f" Default: {_plain(parameter.default)}."
    variable = f" (`{parameter.envvar}`)" * bool(parameter.envvar)
    return f"- {', '.join(f'`{name}`' for name in names)}{variable}: {parameter.help}{default}"


def _plain(default: Any) -> str:
    return "on" if default is True else str(default)


def _unwrapped(text: str) -> str:
    """Help is wrapped for terminals; a page wraps by itself."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


# --- settings ------------------------------------------------------------------------------------


def settings() -> str:
    """The settings of a server, by the environment and by options of `rota serve`."""
    from rota.protocol.limits import Limits
    from rota.server.settings import Settings

    server = (
        (f"`ROTA_{name.upper()}`", _default_of(name, field), field.description or "")
        for name, field in Settings.model_fields.items()
        if name not in ("limits", "budgets")
    )
    limits = ((f"`ROTA_LIMITS__{limit.name.upper()}`", limit.default) for limit in fields(Limits))
    return page(
        "Settings",
        "Each of the server's settings is also an option of `rota serve`, which wins over the environment: "
        "`ROTA_LEASE_MS` is `--lease-ms`.",
        table(("variable", "default", "meaning"), server),
        "## Bounds of the protocol",
        "By the environment only; the default of each is what protocol.md says.",
        table(("variable", "default"), limits),
        "## Budgets for callers that are not known yet",
        "By the environment only. `_PER_SOURCE` is for one address (that which a trusted proxy names), or one /64 "
        "network of IPv6; `_IN_ALL` is for all. Each process has its own. `rota_over_budget_total` counts refusals.",
        table(("variable", "default", "of what", "beyond"), _budgets()),
    )


def _budgets() -> Iterator[tuple[str, str, str, str]]:
    from rota.core.access.budgets import BUDGETS, Budgets

    for field, hint in get_type_hints(Budgets, include_extras=True).items():
        share, name, (what, then) = getattr(BUDGETS, field), f"ROTA_BUDGETS__{field.upper()}", hint.__metadata__
        yield f"`{name}__PER_SOURCE`, `{name}__IN_ALL`", f"{share.per_source}, {share.in_all}", what, then


def _default_of(name: str, field: Any) -> str:
    if name == "store":
        return "`rota.db` in the user's data folder"
    return "none" if field.default is None else f"`{str(field.default).lower()}`"


# --- errors, states, metrics, HTTP -----------------------------------------------------------------


def errors() -> str:
    """The one table from error code to what each transport says and what a caller does about it."""
    from rota.protocol.wire.status import STATUS

    rows = (
        (f"`{code}`", status.title, status.http, status.grpc, "yes" if status.retriable else "no", status.remedy)
        for code, status in STATUS.items()
    )
    headings = ("code", "meaning", "HTTP", "gRPC", "the same call may succeed later", "what to do")
    return page(
        "Errors", "An HTTP error is a problem document (RFC 9457) with the code as `code`.", table(headings, rows)
    )


def states() -> str:
    """The states of a group and the moves between them."""
    from rota.core.group.rows import GroupState
    from rota.core.group.state import TRANSITIONS

    start, end = "    [*] --> Empty", "    Dead --> [*]"
    moves = [f"    {before} --> {after}: {event}" for (before, after), event in TRANSITIONS.items()]
    diagram = "\n".join(("```mermaid", "stateDiagram-v2", start, *moves, end, "```"))
    text = "\n".join(line.removeprefix("    ") for line in (GroupState.__doc__ or "").splitlines())
    summary, _, answers = text.strip().partition("\n")
    rows = ((before, after, event) for (before, after), event in TRANSITIONS.items())
    moves_table = table(("from", "to", "when"), rows)
    return page("States of a group", diagram, summary, f"```\n{answers.strip()}\n```", "## Moves", moves_table)


def defaults() -> str:
    """Every default time of the SDK, the command line, the sidecar and the adapters, with its reason."""
    rows = ((_duration(each.value_ms), each.used_by, each.reason) for each in defaults_table())
    opening = (
        "One table for the SDK, the commands, the sidecar and the adapters: they take these values from the module "
        "`rota.protocol.defaults`. The server's own settings are in [Settings](settings.md)."
    )
    return page("Defaults", opening, table(("default", "used by", "reason"), rows))


def _duration(value_ms: int) -> str:
    """In the largest unit that shows it exactly."""
    for unit, length_ms in (("min", 60_000), ("s", 1_000)):
        if value_ms and value_ms % length_ms == 0:
            return f"{value_ms // length_ms} {unit}"
    return f"{value_ms} ms"


def metrics() -> str:
    """The metrics of the server's `/metrics`, of the pipeline, and of the SDK."""
    from rota.client.metrics import CAUSES, LABELS, METRICS
    from rota.pipeline.metrics import Metrics as PipelineMetrics
    from rota.server.observability.metrics import Metrics

    rows = []
    for collector in Metrics().registry._collector_to_names:
        for metric in collector.collect():
            # Nothing was counted yet, so no sample shows the labels: they are asked for where they are kept.
            labels = getattr(metric, "_labelnames", ()) or getattr(collector, "_labelnames", ())
            name = metric.name + ("_total" if metric.type == "counter" else "")
            rows.append((f"`{name}`", metric.type, ", ".join(labels) or "-", metric.documentation))
    of_pipeline = (
        (f"`{m.name}{'_total' if m.type == 'counter' else ''}`", m.type, "-", m.documentation)
        for m in PipelineMetrics().registry.collect()
    )
    headings = ("name", "type", "labels", "meaning")
    of_sdk = (
        (f"`{each.name}`", each.type_in_prometheus, ", ".join(each.labels) or "-", each.meaning) for each in METRICS
    )
    return page(
        "Metrics",
        "## Of a server",
        table(headings, sorted(rows)),
        "## Of `rota pipeline follow --metrics HOST:PORT`",
        table(headings, sorted(of_pipeline)),
        "## Of the Python SDK",
        "Names and labels of `rota.adapters.prometheus`: see [Monitor Rota](../how-to/observe.md). OpenTelemetry has "
        "them with dots, and without units and `_total`: `rota.client.calls` with the attribute `rota.group_id`.",
        table(headings, of_sdk),
        table(("label", "values"), ((f"`{label}`", meaning) for label, meaning in LABELS.items())),
        table(("cause of a rebalance", "meaning"), ((f"`{cause}`", meaning) for cause, meaning in CAUSES.items())),
    )


def tables() -> str:
    """The tables that `rota pipeline` makes."""
    from rota.pipeline.facts.rebalances import OUTCOMES
    from rota.pipeline.tables import BRONZE, CURRENT, GOLD
    from rota.protocol.causes import CAUSES

    parts = []
    for each in (BRONZE, *GOLD.values(), CURRENT):
        names = tuple(column.name for column in each.columns[:2])
        shown = each.columns[2:] if names == _OF_GROUPS else each.columns
        rows = [f"- `{column.name}` ({_type_name(column)}): {column.doc}" for column in shown]
        sources = ", ".join(f"`{kind}`" for kind in each.sources)
        text = f"One row: {each.grain}."
        if sources:
            text += f" Made of the lines {sources}."
        if each.not_included:
            text += f" Not included: {each.not_included}."
        parts += [f"## {each.name}", text, "\n".join(rows)]
        if each.exactly:
            parts.append(each.exactly)
    parts += ["## Lines of the journal", _LINES, table(("kind", "payload"), sorted(line_rows()))]
    for heading, words in (("cause", CAUSES), ("outcome", OUTCOMES)):
        meanings = ((f"`{word}`", meaning) for word, meaning in words.items())
        parts += [f"## {heading.capitalize()}s of rebalances", table((heading, "meaning"), meanings)]
    opening = (
        "What `rota pipeline` makes of the journal. Most begin with `namespace` and `group_id`, not listed then. "
        "Times are UTC, names that end with `_ms` are milliseconds. "
        "Rows are written when they are complete and never change after that; those that have no end yet are in "
        "`current`. Each row of a batch has the number of that batch (`batch`): tables agree up to the highest number "
        "in `current`, which a batch writes last. The order of lines is that of `seq` in their shard. Owners' clocks "
        "differ, so the later line may have the earlier time: a duration (`_ms`) is never below 0. `silver/events` has "
        "the columns of `bronze/lines` except `payload`, and a column for each field of each kind of line, as listed "
        "below; the payload's `generation_id` is `new_generation_id` there, its `epoch` is `owner_epoch`, and the "
        "number of a topic's `partitions` is `partition_count`."
    )
    return page("Tables of the pipeline", opening, *parts)


def _type_name(column: Any) -> str:
    """The type of a column; that of `open` would be all tables once more."""
    return "struct of lists" if column.name == "open" else str(column.type_).removesuffix("[us, tz=UTC]")


_OF_GROUPS = ("namespace", "group_id")
"""The columns with which tables of groups begin."""


_LINES = (
    "A line's payload is JSON; `reason` is a column of its own. Where a list stands for several values, this is their "
    "order. `member` is an object: `member_id`, `group_instance_id` (null for a dynamic member), `client_id`, `host`, "
    "`session_timeout_ms`, `rebalance_timeout_ms`, `protocols` (name and base64 of the metadata of each)."
)
_NESTED = {
    "assignments": "of each member its id and the base64 of its assignment",
    "member_ids": "of all members, in order",
    "members": "of each member its id, client id, session timeout (ms), since when its gaps were counted (ms since "
    "1970), the longest of them (ms), and of each class of gaps the class and how many",
    "offsets": "of each partition its topic, number, offset, leader epoch, metadata and, in some, two more times",
}


def line_rows() -> Iterator[tuple[str, str]]:
    """Each kind of line, with what its payload holds."""
    from rota.core.group.records import RECORD_KINDS, OffsetsDeleted

    for kind, record in RECORD_KINDS.items():
        nested = {**_NESTED, "partitions": "of each its topic and number"} if record is OffsetsDeleted else _NESTED
        names = (name for name in record.__struct_fields__ if name != "reason")
        fields = (f"`{name}` ({nested[name]})" if name in nested else f"`{name}`" for name in names)
        yield f"`{kind}`", ", ".join(fields)


def openapi() -> str:
    """The OpenAPI document, as `/openapi.json` serves it with the default limits."""
    return dump_openapi()


def http() -> str:
    """Every route, by what it is for."""
    from rota.protocol.messages import JoinGroup, Protocol

    tables = (
        part
        for tag, rows in http_rows().items()
        for part in (f"## {tag.capitalize()}", table(("route", "what it does", "needs"), rows))
    )
    opening = (
        "Bodies and answers are JSON; bytes are base64, times end with `_ms`. Refusals are problem documents whose "
        "`code` is one of the [errors](errors.md). Every answer carries `revision` and `epoch`. A server describes "
        "all fields and statuses at `/docs` and `/openapi.json` (with the default limits: "
        "`docs/reference/openapi.json`). With [rules](../how-to/security.md), a caller shows a token or a certificate; "
        "*needs* is the action that a rule must allow."
    )
    join = JoinGroup(
        "default", "indexers", "worker", (Protocol("range", b"documents"),), 10_000, 60_000, wait_ms=30_000
    )
    joining = "## A request\n\nThe body of a join, for one:\n\n```json\n" + body_of(join) + "\n```"
    return page("HTTP", opening, *tables, joining)


def grpc() -> str:
    """Every rpc, by service."""
    services = (
        part
        for service, rows in grpc_rows()
        for part in (f"## rota.v1.{service}", table(("rpc", "what it does", "takes", "answers"), rows))
    )
    opening = (
        "Package `rota.v1`, described in `proto/rota/v1`, with the standard health and reflection services. Errors "
        "carry `google.rpc.ErrorInfo` with the [code](errors.md) as `reason` and `rota` as `domain`."
    )
    return page("gRPC", opening, *services)


def sdk() -> str:
    """The public names of the Python SDK."""
    return page("The Python SDK", *sdk_parts())


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "defaults.md": defaults,
    "settings.md": settings,
    "errors.md": errors,
    "states.md": states,
    "metrics.md": metrics,
    "tables.md": tables,
    "openapi.json": openapi,
    "http.md": http,
    "grpc.md": grpc,
    "sdk.md": sdk,
}


def write(folder: Path) -> None:
    """Write every page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")


def out_of_date(folder: Path) -> list[str]:
    """The pages that are missing, or not what would be written now."""
    return [
        name
        for name, make in PAGES.items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != make()
    ]


def stale_stub() -> list[str]:
    """The sync SDK's types, if they are not those of the async one."""
    return [] if STUB.is_file() and STUB.read_text(encoding="utf-8") == sync_stub() else [STUB.name]


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if stale := out_of_date(REFERENCE) + stale_stub():
            sys.exit(f"out of date, run `make docs`: {', '.join(stale)}")
    else:
        write(REFERENCE)
        STUB.write_text(sync_stub(), encoding="utf-8")
