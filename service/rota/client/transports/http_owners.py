"""Finding a group's owner over HTTP."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from rota.client.transports.owner_search import Ask, OwnerReport
from rota.client.transports.owners import Group, OwnerOutOfReach
from rota.protocol.limits import MAX_SAFE_INTEGER, Limits
from rota.wire.documents import parse_document
from rota.wire.fields import Integer, Text
from rota.wire.records import ObjectShape, Property
from rota.wire.routes import PREFIX

_TEXT = Text(2**31)
_COORDINATOR = ObjectShape(
    dict,
    (
        Property("replica_id", _TEXT),
        Property("reported_by", _TEXT, ""),
        Property("epoch", Integer()),
        Property("lease_left_ms", Integer(-MAX_SAFE_INTEGER)),
        Property("address", _TEXT),
        Property("worker_http_port", Integer(0, 65_535), 0),
    ),
)


def asking_over_http(http: httpx.AsyncClient) -> Ask:
    """See `rota.client.transports.owner_search.Ask`."""

    async def ask(group: Group, at: str) -> OwnerReport:
        namespace, group_id = (quote(name, safe="") for name in group)
        try:
            response = await http.get(f"{at}{PREFIX.format(namespace=namespace)}/groups/{group_id}/coordinator")
            found = _COORDINATOR.decode(parse_document(response.raise_for_status().content), Limits())
        except Exception as error:
            # Nothing depends on this call: whatever it fails with, requests go to the listed addresses.
            raise OwnerOutOfReach(str(error)) from error
        is_owned = found["lease_left_ms"] > 0
        return OwnerReport(
            found["replica_id"] if is_owned else "",
            found["reported_by"],
            found["epoch"],
            found["address"].rstrip("/"),
            found["worker_http_port"],
        )

    return ask
