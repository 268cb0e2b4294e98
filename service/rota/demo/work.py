"""The demo's work: its files, their partitions, and the counting of one file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from zlib import crc32

import rota

TOPIC = "words"
_WORD = re.compile(rb"\w+")
_SKIPPED = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True)
class Work:
    """Files by partition. Each partition's list is processed `rounds` times; an offset is a position in
    that sequence.
    """

    root: str
    partitions: tuple[tuple[str, ...], ...]
    rounds: int

    @classmethod
    def of_folder(cls, root: Path, partitions: int, rounds: int) -> Work:
        """Return all files below a folder that are not hidden, partitioned by the checksum of their names."""
        names: list[list[str]] = [[] for _ in range(partitions)]
        for name in sorted(_names(root)):
            names[crc32(name.encode()) % partitions].append(name)
        return cls(str(root), tuple(map(tuple, names)), rounds)

    @classmethod
    def load(cls, path: Path) -> Work:
        """Load saved work."""
        document = json.loads(path.read_text())
        return cls(document["root"], tuple(map(tuple, document["partitions"])), document["rounds"])

    def save(self, path: Path) -> None:
        """Save it for the workers, so that all use the same list."""
        path.write_text(json.dumps(asdict(self)))

    def copied_to(self, folder: Path) -> Work:
        """Return the same work on a copy of the files, so that later changes have no effect."""
        for name in (name for names in self.partitions for name in names):
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(self.root, name), copy)
        return replace(self, root=str(folder))

    @property
    def files(self) -> int:
        """The number of files."""
        return sum(map(len, self.partitions))

    @property
    def total(self) -> int:
        """The number of files counted in all rounds together."""
        return self.files * self.rounds

    def end(self, partition: int) -> int:
        """Return the offset at which a partition is done."""
        return len(self.partitions[partition]) * self.rounds

    def name_at(self, partition: int, offset: int) -> str:
        """Return the file at an offset."""
        names = self.partitions[partition]
        return names[offset % len(names)]

    def count_at(self, partition: int, offset: int) -> int:
        """Count the words of the file at an offset."""
        return count_words(Path(self.root, self.name_at(partition, offset)))

    def count_directly(self) -> int:
        """Count all words of all rounds directly, as the expected result."""
        return self.rounds * sum(count_words(Path(self.root, name)) for names in self.partitions for name in names)


def count_words(path: Path) -> int:
    """Count the words of a file, whatever its encoding."""
    return len(_WORD.findall(path.read_bytes()))


def default_work(partitions: int, rounds: int) -> Work:
    """Return the work on the README and sources of the checkout with this package, or of the installed package."""
    package = Path(rota.__file__).parent
    checkout = package.parents[1]
    everything = Work.of_folder(checkout if (checkout / "README.md").is_file() else package, partitions, rounds)
    chosen = [
        tuple(name for name in names if name.endswith(".py") or name == "README.md") for names in everything.partitions
    ]
    return replace(everything, partitions=tuple(chosen))


def _names(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        name = path.relative_to(root)
        is_hidden = any(part.startswith(".") or part in _SKIPPED for part in name.parts)
        if path.is_file() and not path.is_symlink() and not is_hidden:
            yield name.as_posix()
