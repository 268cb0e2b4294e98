"""Lookup of a group's owner over HTTP."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import httpx
import msgspec

from rota.client.transports.owner_search import Ask, OwnerReport
from rota.client.transports.owners import Group, OwnerOutOfReach
from rota.protocol.calls import NAMESPACE_PATH


class _Coordinator(msgspec.Struct):
    replica_id: str
    epoch: int
    lease_left_ms: int
    address: str
    reported_by: str = ""
    worker_http_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0


def asking_over_http(http: httpx.AsyncClient) -> Ask:
    """Return the lookup over HTTP: see `rota.client.transports.owner_search.Ask`."""

    async def ask(group: Group, at: str) -> OwnerReport:
        namespace, group_id = (quote(name, safe="") for name in group)
        try:
            response = await http.get(f"{at}{NAMESPACE_PATH.format(namespace=namespace)}/groups/{group_id}/coordinator")
            found = msgspec.json.decode(response.raise_for_status().content, type=_Coordinator)
        except Exception as error:
            # This call is optional: after any failure, requests are sent to the listed addresses.
            raise OwnerOutOfReach(str(error)) from error
        is_owned = found.lease_left_ms > 0
        return OwnerReport(
            found.replica_id if is_owned else "",
            found.reported_by,
            found.epoch,
            found.address.rstrip("/"),
            found.worker_http_port,
        )

    return ask
