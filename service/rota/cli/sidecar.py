"""`rota sidecar`: a member for a program in any language, which polls over HTTP or is notified by hooks."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.exits import CommandFailed, Exit
from rota.cli.members import (
    DEFAULT_STRATEGY,
    LONGEST_MS,
    LONGEST_SESSION_MS,
    LONGEST_STOP_MS,
    PREEMPT_AFTER_S,
    ConfigOffset,
    Connector,
    Except,
    NoPreempt,
    PreemptAfter,
    Priority,
    ReturnDelay,
    TopicRegex,
    TopicsDebounce,
    run_member,
    shared_work_of,
)
from rota.cli.options import Namespace, Url, shared, usage
from rota.protocol.defaults import HOOKS_TIMEOUT_MS, RETURN_DELAY_MS, SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from rota.agents.sidecar.settings import Address


def sidecar(
    context: typer.Context,
    lead: Annotated[
        str | None,
        typer.Option("--lead", envvar="ROTA_LEAD", metavar="NAME", help="Join this election as a candidate."),
    ] = None,
    work: Annotated[
        str | None, typer.Option("--work", envvar="ROTA_WORK", metavar="GROUP", help="Join this group as a worker.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            envvar="ROTA_TOPICS",
            help="Topic whose partitions to share, with --work; repeat for several.",
        ),
    ] = None,
    topic_regex: TopicRegex = None,
    topics_except: Except = None,
    topics_debounce_ms: TopicsDebounce = 0,
    connector: Connector = None,
    config_offset_file: ConfigOffset = None,
    scheduled_rebalance_max_delay_ms: ReturnDelay = RETURN_DELAY_MS,
    strategy: Annotated[str, typer.Option(help="Assignment strategy; the same for all members.")] = DEFAULT_STRATEGY,
    http: Annotated[
        str,
        typer.Option(
            "--http",
            "--listen",
            envvar="ROTA_SIDECAR_HTTP",
            metavar="HOST:PORT|unix:PATH",
            help="Address of the program's API, or a Unix socket that only this user may open.",
        ),
    ] = "127.0.0.1:4040",
    http_token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="ROTA_SIDECAR_HTTP_TOKEN_FILE", help="Programs must send this file's token as a bearer token."
        ),
    ] = None,
    allow_host: Annotated[
        str,
        typer.Option(
            envvar="ROTA_SIDECAR_ALLOW_HOST",
            metavar="NAME,…",
            help="Host names, in addition to loopback names, with which programs may call the API.",
        ),
    ] = "",
    probes: Annotated[
        str,
        typer.Option(
            envvar="ROTA_SIDECAR_PROBES", metavar="HOST:PORT", help="Address of the kubelet's probes; `off` for none."
        ),
    ] = "0.0.0.0:4041",
    session_timeout_ms: Annotated[
        int,
        typer.Option(
            min=1_000,
            max=LONGEST_SESSION_MS,
            envvar="ROTA_SESSION_TIMEOUT_MS",
            help="Time without a heartbeat before others take over.",
        ),
    ] = SESSION_TIMEOUT_MS,
    instance_id: Annotated[
        str | None,
        typer.Option(
            envvar="ROTA_GROUP_INSTANCE_ID", help="Static name that survives restarts; default: POD_NAME, if set."
        ),
    ] = None,
    priority: Priority = 0,
    preempt_after: PreemptAfter = PREEMPT_AFTER_S,
    no_preempt: NoPreempt = False,
    leave: Annotated[
        bool, typer.Option(help="Leave the group at the end; otherwise a restart within the session keeps its place.")
    ] = True,
    progress_timeout_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LONGEST_MS,
            envvar="ROTA_PROGRESS_TIMEOUT_MS",
            help="Release the share after this long without POST /progress.",
        ),
    ] = None,
    revoke_timeout_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=LONGEST_STOP_MS,
            envvar="ROTA_REVOKE_TIMEOUT_MS",
            help="Maximum time for hooks to stop their work.",
        ),
    ] = HOOKS_TIMEOUT_MS,
    file: Annotated[
        Path | None, typer.Option(envvar="ROTA_FILE", help="Keep the status in this file, as JSON with its expiry.")
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(envvar="ROTA_WEBHOOK", metavar="URL", help="POST every change there.")
    ] = None,
    webhook_secret_file: Annotated[
        Path | None,
        typer.Option(envvar="ROTA_WEBHOOK_SECRET_FILE", help="Sign webhook requests with this file's secret."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            envvar="ROTA_EXEC",
            metavar="COMMAND",
            help="Run this command at every change, without a shell; its last argument is the kind of the change.",
        ),
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-env",
            envvar="ROTA_PASS_ENV",
            metavar="NAME",
            help="Pass this variable to --exec: ROTA_TOKEN, ROTA_STORE, ROTA_REDIS and ROTA_WEBHOOK are withheld.",
        ),
    ] = None,
    pod_label: Annotated[
        str | None,
        typer.Option(envvar="ROTA_POD_LABEL", metavar="KEY", help="Set this label of the pod to the current state."),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Run as a sidecar: join a group on behalf of a local program, until SIGTERM.

    GET / returns the leader's name, as the old Kubernetes leader-elector did, but never a stale one; /leader is 200 or
    503; /assignments, /events (server-sent), /wait?for=leader&timeout=30; POST /progress, /resign, /drain. Probes are
    /healthz, /startupz and /readyz. Every answer has its validity in expires_in_ms.
    """
    if (lead is None) == (work is None):
        raise CommandFailed("either --lead NAME or --work GROUP", Exit.USAGE)
    to_share = None
    if work is not None:
        to_share = shared_work_of(
            topic,
            topic_regex,
            connector,
            strategy,
            topics_debounce_ms,
            config_offset_file,
            topics_except,
            scheduled_rebalance_max_delay_ms,
        )
    elif topic or topic_regex or topics_except or connector or config_offset_file:
        raise CommandFailed(
            "--lead does not go with --topic, --topic-regex, --except, --connector or --config-offset-file", Exit.USAGE
        )
    from rota.agents.sidecar.settings import SidecarSettings, instance_id_of

    group = lead if work is None else work
    assert group is not None
    settings = SidecarSettings(
        group,
        _place(http),
        None if probes == "off" else _address(probes),
        to_share,
        session_timeout_ms / 1000,
        instance_id or instance_id_of(os.environ),
        os.environ.get("POD_NAME") or socket.gethostname(),
        None if progress_timeout_ms is None else progress_timeout_ms / 1000,
        revoke_timeout_ms / 1000,
        leave,
        _in_a_folder(file),
        _web_address(webhook),
        _secret(webhook_secret_file),
        _program(command),
        _label_of_a_pod(pod_label),
        _with_a_token(http_token_file),
        _names(allow_host),
        priority,
        None if no_preempt else preempt_after,
    )
    from rota.agents.sidecar.listening import CannotListen
    from rota.agents.sidecar.serve import serve

    options, running = shared(context, url, namespace), partial(serve, settings=settings)
    try:
        run_member(
            options,
            group,
            running,
            pass_env,
            instance_id=instance_id,
            client_id=settings.name,
            retry_refusals=True,
        )
    except CannotListen as error:
        raise CommandFailed(str(error)) from error


def _place(given: str) -> Address | Path:
    scheme, _, path = given.partition(":")
    if scheme != "unix":
        return _address(given)
    if not path:
        raise CommandFailed(f"{given!r} is not unix:PATH", Exit.USAGE)
    _in_a_folder(Path(path))
    return Path(path)


def _with_a_token(file: Path | None) -> Path | None:
    if file is not None:
        from rota.agents.sidecar.gate import read_token

        with usage():
            read_token(file)
    return file


def _names(given: str) -> tuple[str, ...]:
    from rota.core.access.browsers import parse_names

    with usage():
        names: tuple[str, ...] = parse_names(given)
    return names


def _address(given: str) -> Address:
    from rota.agents.sidecar.settings import Address

    host, _, port = given.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise CommandFailed(f"{given!r} is not HOST:PORT", Exit.USAGE)
    return Address(host.strip("[]"), int(port))


def _secret(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}", Exit.USAGE) from error
    if not secret:
        raise CommandFailed(f"{file}: the secret is empty", Exit.USAGE)
    return secret


def _in_a_folder(file: Path | None) -> Path | None:
    """Reject a file that cannot be written now, instead of at the first write."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK)):
        raise CommandFailed(f"{file}: the file cannot be written", Exit.USAGE)
    return file


def _web_address(url: str | None) -> str | None:
    from rota.protocol.wire.addresses import HTTP, split_address

    if url is not None:
        with usage():
            if split_address(url).scheme not in HTTP:
                raise ValueError(f"{url!r} is no http:// or https:// URL")
    return url


def _label_of_a_pod(key: str | None) -> str | None:
    if key is not None:
        from rota.agents.sidecar.hooks import Pod

        with usage():
            Pod.of(os.environ).trust()
    return key


def _program(command: str | None) -> tuple[str, ...]:
    if not command:
        return ()
    with usage():
        words = tuple(shlex.split(command))
    if not words or shutil.which(words[0]) is None:
        raise CommandFailed(f"--exec {command!r}: no such program", Exit.USAGE)
    return words
