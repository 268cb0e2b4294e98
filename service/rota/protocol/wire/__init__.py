"""How messages look on the wire, as JSON and as protobuf, and which status an error has on each transport.

A message is described once, by the annotations of its fields (`rota.protocol.values`). A `Shape` (shapes.py) is the
struct of its fields that a document has; protobuf.py walks the same fields over a protobuf message; the OpenAPI schemas
are those of the structs. So the transports cannot differ in what they accept, and a new field is one line. ADR 113 has
the alternatives.

The rules of reading are not symmetric, because the two sides are not upgraded together:

- A request is closed: an unknown name is refused, with the nearest known one in the detail. A name that is misspelt
  must not count as absent. So a client sends no name that it leaves absent: an older server may not know it.
- A reply is open: a client ignores names that a newer server adds. A server writes every name of a reply, so that a
  client need not know defaults.
- `null` and absent are the same.

Every answer carries the `revision` and the `epoch` (envelopes.py): the last journal entry of the shard that it
reflects, and which owner of the shard wrote it. A reader of several answers orders them by (epoch, revision); times
say nothing.

An error is a code of the protocol, everywhere: problems.py writes it as RFC 9457 with an HTTP status, rpc_status.py
as a gRPC status with details. An error without such a code did not come from Rota (a proxy's page, another service),
and a client treats it as unavailability, never as an answer.

Readers never quote what they were given: a detail may end in a log. This package is light, as the SDK imports it.
"""
