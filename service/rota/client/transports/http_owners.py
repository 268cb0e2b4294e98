"""Finding a group's owner over HTTP: by the address that it advertises."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import httpx

from rota.client.transports.owners import Group, Owner, OwnerOutOfReach
from rota.protocol.errors import RejectedRequest
from rota.wire.documents import parse_document
from rota.wire.routes import PREFIX


class HttpOwnerSearch:
    """An owner is gone to where it answers and the user listed its address; or, if `anywhere` is set, where what it
    advertises has the scheme of those listed.
    """

    def __init__(self, http: httpx.AsyncClient, base_urls: Sequence[str], *, anywhere: bool) -> None:
        self._http = http
        self._base_urls = base_urls
        self._anywhere = anywhere

    async def find(self, group: Group, at: str) -> Owner | None:
        """See `rota.client.transports.owners.Find`."""
        try:
            owner = await self._ask(group, at)
            if owner is None or await self._may_go_to(owner.address):
                return owner
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise OwnerOutOfReach(str(error)) from error
        raise OwnerOutOfReach(owner.address)

    async def _ask(self, group: Group, at: str) -> Owner | None:
        """`httpx.HTTPStatusError` where who asks may not know."""
        namespace, group_id = (quote(name, safe="") for name in group)
        response = await self._http.get(f"{at}{PREFIX.format(namespace=namespace)}/groups/{group_id}/coordinator")
        if response.is_client_error:
            response.raise_for_status()
        try:
            document = parse_document(response.content) if response.is_success else {}
        except RejectedRequest:
            return None
        address, epoch = document.get("address"), document.get("epoch")
        if not isinstance(address, str) or not address or type(epoch) is not int:
            return None
        return Owner(address.rstrip("/"), epoch)

    async def _may_go_to(self, address: str) -> bool:
        same_scheme = urlsplit(address).scheme == urlsplit(self._base_urls[0]).scheme
        if address not in self._base_urls and not (self._anywhere and same_scheme):
            return False
        return (await self._http.get(f"{address}/healthz")).is_success
