"""Put a race into docs/benchmarks.md, with its picture: `python -m bench.race.publish [build/bench/race.json]`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.race.results import load, picture, table
from bench.servers import ROOT

PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images" / "race.svg"
BEGIN, END = "<!-- race: begin -->", "<!-- race: end -->"


def publish(file: Path, page: Path = PAGE, image: Path = PICTURE) -> None:
    """Replace what stands between the marks of the page."""
    result = load(file)
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for a race: {BEGIN} … {END}")
    facts = "".join(f"- {name}: `{value}`\n" for name, value in result.environment.items())
    page.write_text(f"{before}{BEGIN}\n\n{facts}\n{table(result)}\n{END}{after}")
    image.write_text(picture(result))


if __name__ == "__main__":
    publish(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "bench" / "race.json")
