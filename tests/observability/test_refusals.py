"""Log lines about refusals: bounded for each source and in all, with a count of those that were left out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from functools import partial

import grpc
import pytest

from rota.server.observability import logs
from rota.server.observability.logs import IN_ALL, PER_SOURCE, JsonFormatter, RefusalLog, configure_logging
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import NAMESPACE, Secrets, a_guarded_service, bearer
from tests.grpc.clients import stub

LOG = logging.getLogger("rota.tests.refusals")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root, former = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel("INFO")
    yield stream
    root.removeHandler(handler)
    root.setLevel(former)


def written(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_source_has_some_lines_a_second(lines: io.StringIO) -> None:
    now = [0.0]
    log = RefusalLog(lambda: now[0])

    first = [log.write(LOG, "refused", "a") for _ in range(100)]
    now[0] = 1.0
    later = log.write(LOG, "refused", "a", subject="s")

    assert first == [True] * PER_SOURCE + [False] * (100 - PER_SOURCE)
    assert later
    last = written(lines)[-1]
    assert (last["subject"], last["left_out"]) == ("s", 100 - PER_SOURCE)
    assert all("left_out" not in line for line in written(lines)[:-1])


def test_many_sources_share_the_lines_of_a_second(lines: io.StringIO) -> None:
    log = RefusalLog(lambda: 0.0)

    allowed = [log.write(LOG, "refused", f"source {n}") for n in range(10_000)]

    assert sum(allowed) == len(written(lines)) == IN_ALL


async def test_a_message_for_many_groups_writes_few_lines(
    lines: io.StringIO, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a caller without credentials, and those of one with a token for another namespace."""
    monkeypatch.setattr(logs, "_lines", RefusalLog(lambda: 0.0))
    beats = [pb.MemberHeartbeat(member_id="m", generation_id=1)]
    groups = [pb.GroupHeartbeat(namespace=NAMESPACE, group_id=f"g{n}", members=beats) for n in range(1_000)]

    async with a_guarded_service(Secrets(tmp_path_factory.mktemp("secrets"))) as service:
        elsewhere = tuple(bearer(service.secrets.a_token("w", namespace="team-b")).items())
        beat_all = partial(stub(service.channel).HeartbeatMany, pb.HeartbeatManyRequest(groups=groups))
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await beat_all()
        assert len((await beat_all(metadata=elsewhere)).groups) == 1_000
        for n in range(100):
            await service.http.post(f"/v1/namespaces/{NAMESPACE}/groups/g{n}/heartbeat", content=b"{}")

    refused = [line for line in written(lines) if line["message"] == "refused"]
    assert 1 <= len(refused) <= IN_ALL


def test_what_clients_send_makes_libraries_write_nothing() -> None:
    """GRPC's line has a traceback, and quotes the header: a token with a slip of the pen, say."""
    root, chatty = logging.getLogger(), logging.getLogger("uvicorn.error")
    handlers, levels = root.handlers[:], (root.level, chatty.level)
    stream = io.StringIO()
    try:
        configure_logging("json", stream=stream)
        chatty.warning("Invalid HTTP request received.")
        chatty.error("an exception of ours")
        grpc_log = logging.getLogger("grpc._cython.cygrpc")
        grpc_log.error("Invalid encoding on %s", b"Bearer rota_secret\xff", exc_info=ValueError("not UTF-8"))
        grpc_log.error("ExecuteBatchError raised in core by servicer method [%s]", "/rota.v1.Admin/Describe")
        grpc_log.error("Unexpected [%s] raised by servicer method [%s]", "KeyError", "/rota.v1.Admin/Describe")
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        chatty.setLevel(levels[1])

    ours = ["an exception of ours", "Unexpected [KeyError] raised by servicer method [/rota.v1.Admin/Describe]"]
    assert [line["message"] for line in written(stream)] == ours
