"""What stops a pipeline: each failure is a class of its own, and its message says what to do about it.

PipelineFailed
├── JavaMissing
├── JournalUnreachable     the store does not answer
├── JournalRefused         it answers, but not to us: no rights, another schema
├── WrongIncarnation       another journal than the one that was read before
├── LinesMissing           lines were pruned, or are gone
├── LakeUnreachable        the object store of the tables does not answer
├── LakeRefused            the folder of tables is not ours, or was made by a later release
│   └── LakeBusy           another process is writing to it
└── NothingFound           the tables lack the data that was asked for
"""

from __future__ import annotations


class PipelineFailed(Exception):
    """No step is half done: the tables are as they were before."""


class JavaMissing(PipelineFailed):
    """Spark needs Java 17 or later, and none was found."""


class JournalUnreachable(PipelineFailed):
    """The store cannot be reached; it may answer later."""


class JournalRefused(PipelineFailed):
    """The store answers but is not ours to read."""


class WrongIncarnation(PipelineFailed):
    """The positions that are known mean the lines of another journal."""


class LinesMissing(PipelineFailed):
    """A journal is gapless: missing lines were pruned before they were read, or were deleted behind its back."""


class LakeUnreachable(PipelineFailed):
    """The object store that has the tables cannot be reached; it may answer later."""


class LakeRefused(PipelineFailed):
    """The tables cannot be used as they are."""


class LakeBusy(LakeRefused):
    """One process writes at a time; this one may try again."""


class NothingFound(PipelineFailed):
    """The tables lack the data that was asked for."""
