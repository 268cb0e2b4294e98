"""What our own failures look like after they have come through Spark: lines in the middle of a Java stack trace."""

from __future__ import annotations

import re

from rota.pipeline import failures

_RAISED = re.compile(r"rota\.pipeline\.failures\.(\w+): (.+)")


def told_by_spark(error: Exception) -> str | None:
    """The message of the failure that a task or a planner raised; None if it was something else."""
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        return None
    for name, message in _RAISED.findall(str(error)):
        if hasattr(failures, name):
            return str(message).strip()
    return None
