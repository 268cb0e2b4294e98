"""The transports to a coordinator. All of them implement `Transport`."""

from rota.client.transports.http import HttpTransport
from rota.client.transports.port import Answer, GroupEvent, Transport

__all__ = ["Answer", "GroupEvent", "HttpTransport", "Transport"]
