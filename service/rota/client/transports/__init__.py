"""Ways to a coordinator: HTTP, or a coordinator in the same process. All of them are a `Transport`."""

from rota.client.transports.http import HttpTransport
from rota.client.transports.in_memory import InMemoryTransport
from rota.client.transports.port import Answer, GroupEvent, Transport

__all__ = ["Answer", "GroupEvent", "HttpTransport", "InMemoryTransport", "Transport"]
