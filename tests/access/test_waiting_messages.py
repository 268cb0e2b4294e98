"""Messages that wait for a turn of the event loop: they take memory, which callers without rights are not given."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from rota.server.grpc.receiving import BYTES_OF_A_TURN
from tests.access.guarded import NAMESPACE, Secrets, a_guarded_service
from tests.grpc.clients import SessionClient, a_join
from tests.runtime.conftest import until


@pytest.mark.parametrize("caller", ["a member", "no member"])
async def test_no_message_waits_for_a_turn_whose_caller_may_do_nothing(tmp_path: Path, caller: str) -> None:
    """The budget for what callers without rights send ends with the message's last byte."""
    secrets = Secrets(tmp_path)
    metadata = (("authorization", f"Bearer {secrets.a_token('member')}"),) if caller == "a member" else ()
    async with a_guarded_service(secrets) as service:
        turns = service.server._receiver.turns
        turns._left = 0
        session = SessionClient(service.channel, metadata)
        await session.send(join=a_join(namespace=NAMESPACE))
        if caller == "no member":
            assert await session.until_ended() is grpc.StatusCode.UNAUTHENTICATED
        else:
            await until(lambda: any(each._is_beginning for each in service.server._sessions))
        turns._left = BYTES_OF_A_TURN
        await session.close()
