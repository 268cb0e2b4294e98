"""Where traces are wanted, one call is one trace, over whatever replicas it goes; elsewhere nothing is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rota.client.transports.port import Transport
from rota.protocol import tracing
from rota.protocol.messages import Heartbeat, JoinGroup, JoinReply, Protocol
from rota.server.observability.otel import OtelSpans
from tests.contracts.transports import TIMEOUT_MS, a_transport, namespaces

METADATA = b"what only members may know"


class Traces:
    """A program that traces its own work, and the spans that were made in the meantime."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.own = provider.get_tracer("a program")
        self._exporter = exporter

    def spans(self, name: str = "") -> list[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        return [span for span in found if span.name == name or not name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def forget(self) -> None:
        self._exporter.clear()


@pytest.fixture
def traces() -> Iterator[Traces]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.install(OtelSpans(provider))
    yield Traces(provider, exporter)
    tracing.install(None)
    provider.shutdown()


async def joined(sender: Transport, namespace: str) -> JoinReply:
    """One static member that leads its group."""
    protocols = (Protocol("p", METADATA),)
    join = JoinGroup(namespace, "g", "worker", protocols, 30_000, 30_000, group_instance_id="i")
    reply = (await sender.send(join, timeout_ms=TIMEOUT_MS)).reply
    assert isinstance(reply, JoinReply)
    return reply


def ids(spans: Sequence[ReadableSpan]) -> set[int]:
    return {span.get_span_context().trace_id for span in spans}  # type: ignore[union-attr]


def parent(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def own_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


@pytest.mark.parametrize(
    ("transport", "operation"), [("http forwarded", "groupsJoin"), ("grpc forwarded", "JoinGroup")]
)
async def test_a_call_that_is_forwarded_is_one_trace(transport: str, operation: str, traces: Traces) -> None:
    async with a_transport(transport) as sender:
        traces.forget()
        with traces.own.start_as_current_span("my work") as work:
            reply = await joined(sender, next(namespaces()))
        asked, forward = traces.one(operation), traces.one("forward JoinGroup")
        answered, decided = traces.one("forwarded JoinGroup"), traces.one("decide JoinGroup")

    assert [parent(span) for span in (asked, forward, answered, decided)] == [
        work.get_span_context().span_id,
        *(own_id(span) for span in (asked, forward, answered)),
    ]
    assert ids([asked, forward, answered, decided]) == {work.get_span_context().trace_id}
    assert reply.generation_id == 1


async def test_a_decision_says_which_group_which_generation_and_why(traces: Traces) -> None:
    async with a_transport("http") as sender:
        namespace = next(namespaces())
        await joined(sender, namespace)
        noted = dict(traces.one("decide JoinGroup").attributes or {})

    assert (noted["rota.namespace"], noted["rota.group_id"]) == (namespace, "g")
    assert "joined" in str(noted["rota.reason"])
    assert "rebalance_started" in str(noted["rota.records"])
    assert traces.one("groupsJoin").attributes["http.response.status_code"] == 200  # type: ignore[index]


async def test_a_commit_is_linked_to_the_calls_that_it_makes_durable(traces: Traces) -> None:
    async with a_transport("http") as sender:
        traces.forget()
        await joined(sender, next(namespaces()))
        decided = own_id(traces.one("decide JoinGroup"))
        commits = traces.spans("commit")

    assert decided in {link.context.span_id for commit in commits for link in commit.links}


async def test_a_heartbeat_that_is_forwarded_is_in_the_trace_of_its_caller(traces: Traces) -> None:
    async with a_transport("http forwarded") as sender:
        namespace = next(namespaces())
        member = await joined(sender, namespace)
        traces.forget()
        beat = Heartbeat(namespace, "g", member.member_id, member.generation_id)
        await sender.send(beat, timeout_ms=TIMEOUT_MS)
        forward = traces.one("forward Heartbeat")
        answered, decided = traces.one("forwarded Heartbeat"), traces.one("decide Heartbeat")

    assert (parent(answered), parent(decided)) == (own_id(forward), own_id(answered))


async def test_no_span_carries_what_only_members_may_know(traces: Traces) -> None:
    async with a_transport("http forwarded") as sender:
        await joined(sender, next(namespaces()))

    assert traces.spans()
    assert not any("only members" in span.to_json() for span in traces.spans())


def test_a_client_brings_no_opentelemetry_along() -> None:
    program = "import sys, rota; rota.connect; assert 'opentelemetry' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
