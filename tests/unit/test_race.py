"""The race's clients read what servers send, however it is cut, and its table says who is ahead."""

from __future__ import annotations

import pytest

from bench.race.nats import NatsWire
from bench.race.results import Result, table
from bench.race.valkey import Resp
from bench.race.wire import Grpc, LengthPrefixed, Wire, message_frame, prefixed

FRAMES = [
    (LengthPrefixed, [b"one", b"", b"three" * 99], prefixed),
    (
        Resp,
        [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"$3\r\nabc\r\n", b"*2\r\n$1\r\na\r\n*1\r\n:7\r\n", b"-ERR no\r\n"],
        bytes,
    ),
    (NatsWire, [b"PING\r\n", b"MSG a 1 2\r\n{}\r\n", b"HMSG a 1 b.c 12 14\r\nNATS/1.0\r\n\r\nok\r\n"], bytes),
    (Grpc, [message_frame(1, b"abc"), message_frame(3, b"")], bytes),
]


@pytest.mark.parametrize(("kind", "frames", "encode"), FRAMES)
def test_frames_are_whole_wherever_the_data_is_cut(kind: type[Wire], frames: list[bytes], encode: type[bytes]) -> None:
    data = b"".join(map(encode, frames))
    for cut in range(len(data) + 1):
        wire = kind()

        first, left = wire.split(data[:cut])
        second, rest = wire.split(left + data[cut:])

        assert (first + second, rest) == (frames, b"")


def _a_result() -> Result:
    result = Result({"date": "today"}, ["Rota, HTTP", "Rota, streams", "etcd", "Kafka"], {"NATS": "not built"})
    for ours, streams, etcd in ((10.0, 40.0, 30.0), (12.0, 44.0, 28.0), (11.0, 42.0, 33.0)):
        for system, value in (("Rota, HTTP", ours), ("Rota, streams", streams), ("etcd", etcd)):
            result.add([("calls: CPU of 1,000", "ms"), ("calls: rate", "calls/s")], system, [value, 1_000 / value])
    result.lack([("calls: CPU of 1,000", "ms")], "Kafka", "it has no such call")
    return result


def test_the_table_names_what_is_missing_with_its_reason() -> None:
    text = table(_a_result())

    assert "| calls: CPU of 1,000 | ms | 11 | 42 | 30 (× 2.73) | – |" in text
    assert "- NATS was skipped: not built." in text
    assert "- Kafka has no figure of *calls*: it has no such call." in text
