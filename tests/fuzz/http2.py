"""gRPC: frames of HTTP/2 that are nearly right, and rpcs with messages that are nearly right."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from rota.v1 import access_pb2, admin_pb2, coordinator_pb2
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import mutated
from tests.fuzz.served import HOST, Served

CALL_S, STREAM_S, READ_S = 30.0, 0.1, 0.01
OUR_FAULT = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _END_HEADERS = 1, 4
_METADATA = (
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"grpc-timeout", b"1m"),
    (b"grpc-timeout", b"99999999H"),
    (b"grpc-timeout", b"x"),
    (b"grpc-encoding", b"gzip"),
    (b"authorization", b"Bearer \xff"),
    (b"rota-note", b"%ff%00"),
    (b"rota-note-bin", b"!"),
    (b"x-forwarded-for", b"\xff"),
    (b"grpc-trace-bin", b"\x00" * 40),
    (b"connection", b"close"),
    (b"", b""),
)
_TEXTS = ("default", "g1", "g2", "i1", "", "range", "\x00", "ä" * 200, "x" * 5_000)
_NUMBERS = (-1, 0, 1, 2, 1_000, 2**31 - 1, -(2**31))

METHODS = tuple(
    method
    for module in (coordinator_pb2, admin_pb2, access_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)


class GrpcFuzzer:
    """Half of the cases are frames on a socket, the others calls of a channel."""

    def __init__(self, served: Served, channel: grpc.Channel) -> None:
        self.cpu_s = served.cpu_s
        self._port, self._channel = served.grpc_port, channel

    def play(self, random: Random) -> None:
        if random.random() < 0.5:
            self._send_frames(random)
        else:
            self._call(random)

    def _send_frames(self, random: Random) -> None:
        frames = PREFACE + b"".join(_frames(random))
        if random.random() < 0.5:
            frames = frames[: len(PREFACE)] + mutated(random, frames[len(PREFACE) :])
        with socket.create_connection((HOST, self._port), timeout=CALL_S) as line, suppress(OSError):
            line.sendall(frames)
            line.settimeout(READ_S)
            while line.recv(65_536):
                pass

    def _call(self, random: Random) -> None:
        method = random.choice(METHODS)
        data = a_message(random, GetMessageClass(method.input_type)()).SerializeToString()
        if random.random() < 0.4:
            data = mutated(random, data)
        code = self._code(method, data)
        if code in OUR_FAULT:
            raise Broken(f"{code} to {method.full_name} {data[:2_000]!r}")

    def _code(self, method: Any, data: bytes) -> grpc.StatusCode:
        path = f"/{method.containing_service.full_name}/{method.name}"
        channel: Any = self._channel
        try:
            if method.client_streaming:
                for _ in channel.stream_stream(path)(iter([data, data]), timeout=STREAM_S):
                    pass
            elif method.server_streaming:
                for _ in channel.unary_stream(path)(data, timeout=STREAM_S):
                    pass
            else:
                channel.unary_unary(path)(data, timeout=CALL_S)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def a_message(random: Random, message: Message, depth: int = 0) -> Message:
    """The message with any values of the right types in about half of its fields; one that waits does not wait."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "wait_ms":
            setattr(message, field.name, 0)
        elif random.random() < 0.6 and depth < 4:
            _fill(random, message, field, depth)
    return message


def _fill(random: Random, message: Message, field: Any, depth: int) -> None:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    holder = getattr(message, field.name)
    if is_message and field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        for _ in range(random.choice((0, 1, 3))):
            if is_message:
                a_message(random, holder.add(), depth + 1)
            else:
                holder.append(_value(random, field))
    elif is_message:
        holder.SetInParent()
        a_message(random, holder, depth + 1)
    else:
        setattr(message, field.name, _value(random, field))


def _value(random: Random, field: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return random.choice((b"", b"bytes", b"\xff" * 300))
        case FieldDescriptor.CPPTYPE_STRING:
            return random.choice(_TEXTS[:4] * 4 + _TEXTS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return random.choice([each.number for each in field.enum_type.values])
        case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
            return random.choice([number for number in _NUMBERS if number >= 0])
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return random.choice((0.0, -1.5, float("nan")))
        case _:
            return random.choice(_NUMBERS)


def _frames(random: Random) -> Iterator[bytes]:
    settings = [struct.pack(">HI", random.randint(0, 9), 1 << random.randrange(32)) for _ in range(2)]
    yield _frame(_SETTINGS, 0, 0, b"".join(settings))
    for stream in range(1, 2 * random.choice((1, 2, 20)), 2):
        yield from _rpc(random, stream)
        yield from random.sample(_noise(random, stream), k=random.choice((0, 0, 1, 3)))


def _rpc(random: Random, stream: int) -> Iterator[bytes]:
    method = random.choice(METHODS)
    path = f"/{method.containing_service.full_name}/{method.name}".encode()
    if random.random() < 0.1:
        path = random.choice((path + b"\xff", b"/\xc3/Call", path[1:], b"/", path + b"/more"))
    head = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost")]
    block = b"".join(_literal(*pair) for pair in [*head, *_METADATA[:2], *random.sample(_METADATA, k=2)])
    body = a_message(random, GetMessageClass(method.input_type)()).SerializeToString()
    at = random.choice((len(block), random.randint(0, len(block))))
    yield _frame(_HEADERS, _END_HEADERS if at == len(block) else 0, stream, block[:at])
    if at < len(block):
        yield _frame(_CONTINUATION, _END_HEADERS, stream, block[at:])
    length = random.choice((len(body), len(body), 0, len(body) + 7, 2**32 - 1))
    yield _frame(_DATA, _END_STREAM, stream, struct.pack(">BI", random.choice((0, 0, 1, 9)), length) + body)


def _noise(random: Random, stream: int) -> list[bytes]:
    return [
        _frame(_RESET, 0, stream, struct.pack(">I", random.randint(0, 20))),
        _frame(_PING, 0, 0, random.randbytes(8)) * random.choice((1, 50)),
        _frame(_WINDOW, 0, random.choice((0, stream)), struct.pack(">I", 1 << random.randrange(32))),
        _frame(_GOAWAY, 0, 0, struct.pack(">II", stream, 0) + b"bye"),
        _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1)) * random.choice((1, 50)),
        _frame(random.randint(0, 255), random.randint(0, 255), stream, random.randbytes(random.randint(0, 40))),
    ]


def a_head(stream: int, path: bytes) -> bytes:
    """A connection's settings, and an rpc that has no message."""
    head = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost")]
    block = b"".join(_literal(*pair) for pair in [*head, *_METADATA[:2]])
    return _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, block)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed (RFC 7541, 6.2.2); names and values here are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


@contextmanager
def opened() -> Iterator[GrpcFuzzer]:
    with Served() as served, grpc.insecure_channel(f"{HOST}:{served.grpc_port}") as channel:
        yield GrpcFuzzer(served, channel)


HTTP2 = Target("http2", "gRPC: frames of HTTP/2 and messages of every rpc", opened)
