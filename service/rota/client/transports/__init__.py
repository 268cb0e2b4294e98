"""Ways to a coordinator. All of them are a `Transport`."""

from rota.client.transports.http import HttpTransport
from rota.client.transports.port import Answer, GroupEvent, Transport

__all__ = ["Answer", "GroupEvent", "HttpTransport", "Transport"]
