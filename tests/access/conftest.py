"""A guarded service for each module, with what its `GUARDED_BY` adds to the access file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.access.guarded import Secrets, Service, a_guarded_service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    secrets = Secrets(tmp_path_factory.mktemp("secrets"))
    secrets.a_token("first")
    async with a_guarded_service(secrets, getattr(request.module, "GUARDED_BY", "")) as service:
        yield service
