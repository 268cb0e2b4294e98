"""The race's clients read what servers send, however it is cut, and its table says who is ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.race.nats import NatsWire
from bench.race.results import Result, load, picture, save, table
from bench.race.valkey import Resp, command
from bench.race.wire import Grpc, Http, LengthPrefixed, Wire, fields_of, message, message_frame, prefixed

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


def test_an_http_answer_is_its_status_and_its_body() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 409 No\r\ncontent-length: 1\r\n\r\nx"

    assert Http().split(data + b"HTTP/1.1 2") == ([b"200{}", b"409x"], b"HTTP/1.1 2")


def test_protobuf_fields_come_back_as_they_were_written() -> None:
    written = message({1: 300, 2: "name", 3: [b"a", b"bc"], 15: 2**40})

    assert list(fields_of(written)) == [(1, 300), (2, b"name"), (3, b"a"), (3, b"bc"), (15, 2**40)]


def test_a_protobuf_field_of_another_wire_type_is_refused() -> None:
    with pytest.raises(ValueError, match="wire type 1"):
        list(fields_of(b"\x09" + bytes(8)))


def test_a_command_of_redis_is_an_array_of_its_parts() -> None:
    assert command("GET", "ab", 7) == b"*3\r\n$3\r\nGET\r\n$2\r\nab\r\n$1\r\n7\r\n"


def _a_result() -> Result:
    result = Result({"date": "today"}, ["Rota, HTTP", "Rota, streams", "etcd", "Kafka"], {"NATS": "not built"})
    for ours, streams, etcd in ((10.0, 40.0, 30.0), (12.0, 44.0, 28.0), (11.0, 42.0, 33.0)):
        for system, value in (("Rota, HTTP", ours), ("Rota, streams", streams), ("etcd", etcd)):
            result.add([("calls: CPU of 1,000", "ms"), ("calls: rate", "calls/s")], system, [value, 1_000 / value])
    result.lack([("calls: CPU of 1,000", "ms")], "Kafka", "it has no such call")
    return result


def test_a_ratio_is_that_of_medians_to_the_better_of_rota() -> None:
    cost, rate = _a_result().quantities

    assert cost.times_ours("etcd") == pytest.approx(30 / 11)
    assert rate.times_ours("etcd") == pytest.approx(30 / 11)
    assert cost.times_ours("Kafka") is None


def test_the_table_names_what_is_missing_with_its_reason() -> None:
    text = table(_a_result())

    assert "| calls: CPU of 1,000 | ms | 11 | 42 | 30 (× 2.73) | – |" in text
    assert "- NATS was skipped: not built." in text
    assert "- Kafka has no figure of *calls*: it has no such call." in text


def test_a_system_that_failed_once_has_no_figure() -> None:
    result = _a_result()

    result.lack([("calls: CPU of 1,000", "ms")], "etcd", "failed: TimeoutError")

    assert all("CPU" not in figure.name or "etcd" not in figure.name for figure in result.figures())
    assert "etcd has no figure of *calls*: failed: TimeoutError" in table(result)


def test_the_longest_bar_is_that_of_the_largest_figure() -> None:
    drawn = picture(_a_result())

    widths = [float(part.split('"')[0]) for part in drawn.split('width="')[2:]]
    assert len(widths) == 3
    assert widths.index(max(widths)) == 1


def test_a_saved_result_is_read_again_as_it_was(tmp_path: Path) -> None:
    save(tmp_path, "race", _a_result())

    assert load(tmp_path / "race.json") == _a_result()
