"""Background tasks: an end before the beginning leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import warnings

from rota.client.tasks import BackgroundTasks
from tests.client.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_task_cancelled_before_it_begins_leaves_no_warning() -> None:
    failures: list[BaseException] = []
    tasks = BackgroundTasks(failures.append)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        task = tasks.create(asyncio.sleep(1))
        assert await tasks.cancel(1.0)
        gc.collect()

    assert (task.cancelled(), failures, [str(each.message) for each in caught]) == (True, [], [])
