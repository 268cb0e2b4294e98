"""What stops a pipeline: each failure is a class of its own, and its message says what to do about it.

PipelineFailed
├── JavaMissing
├── JarsMissing            Delta's jars are not in the cache, and cannot be fetched
├── JournalUnreachable     the store does not answer
├── JournalRefused         it answers, but not to us: no rights, another schema
├── WrongIncarnation       another journal than the one that was read before
├── LinesMissing           lines were pruned, or are gone
├── LakeRefused            the tables cannot be used as they are
│   └── LakeBusy           another process writes to them
└── NothingFound           the tables lack the data that was asked for
"""

from __future__ import annotations

import re
import sys


class PipelineFailed(Exception):
    """The next run finishes a batch that is half done."""


class JavaMissing(PipelineFailed):
    """Spark needs Java 17 or later, and none was found."""


class JarsMissing(PipelineFailed):
    """Spark needs the jars of Delta Lake."""


class JournalUnreachable(PipelineFailed):
    """The store cannot be reached; it may answer later."""


class JournalRefused(PipelineFailed):
    """The store answers but is not ours to read."""


class WrongIncarnation(PipelineFailed):
    """The positions that are known mean the lines of another journal."""


class LinesMissing(PipelineFailed):
    """A journal is gapless: missing lines were pruned before they were read, or were deleted behind its back."""


class LakeRefused(PipelineFailed):
    """The tables cannot be used as they are."""


class LakeBusy(LakeRefused):
    """One process writes at a time; this one may try again."""


class NothingFound(PipelineFailed):
    """The tables lack the data that was asked for."""


_RAISED = re.compile(r"rota\.pipeline\.failures\.(\w+): (.+)")
_BUSY = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using", "DELTA_CONCURRENT")
_DAMAGED = (
    "the tables in {lake} cannot be read or written ({error}): if a file of them is damaged, restore the whole folder "
    "from a backup, or name another folder, into which all lines of the journal are read"
)


def failure_of(error: Exception, lake: str) -> PipelineFailed | None:
    """The failure that an exception stands for; None if it is a mistake in this program.

    Spark passes on an exception of a Python worker as text in the middle of a Java stack trace.
    """
    if isinstance(error, PipelineFailed):
        return error
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        return None
    text = str(error)
    for name, message in _RAISED.findall(text):
        kind = getattr(sys.modules[__name__], name, None)
        if isinstance(kind, type) and issubclass(kind, PipelineFailed):
            return kind(str(message).strip())
    if any(code in text for code in _BUSY):
        return LakeBusy(f"another process writes to the tables in {lake}: let it finish, and run this again")
    return LakeRefused(_DAMAGED.format(lake=lake, error=_first_line(text)))


def _first_line(text: str) -> str:
    """The line of Spark's message that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(("Caused by: ", "Exception: "))]
    return (causes or lines or ["no reason was given"])[-1 if causes else 0][:300]
