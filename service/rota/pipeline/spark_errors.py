"""What our own failures look like after they have come through Spark: lines in the middle of a Java stack trace."""

from __future__ import annotations

import re

from rota.pipeline import failures

_RAISED = re.compile(r"rota\.pipeline\.failures\.(\w+): (.+)")


def failure_of(error: Exception) -> failures.PipelineFailed | None:
    """The failure that a task or a planner raised; None if it was something else."""
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        return None
    for name, message in _RAISED.findall(str(error)):
        kind = getattr(failures, name, None)
        if isinstance(kind, type) and issubclass(kind, failures.PipelineFailed):
            return kind(str(message).strip())
    return None


def message_of_spark(error: Exception) -> str | None:
    """The message of that failure."""
    failure = failure_of(error)
    return None if failure is None else str(failure)
