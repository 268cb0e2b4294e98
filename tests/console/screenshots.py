"""Pictures of the console for the docs, of a live service: `python -m tests.console.screenshots docs/images`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.async_api import Page, expect

from tests.console.scene import PAGES, WORKERS, Scene, scene_in
from tests.support.browser import open_browser


@dataclass(frozen=True, slots=True)
class Shot:
    """A page as one sees it; `until` is what must be there first."""

    name: str
    page: str
    scheme: Literal["light", "dark"] = "light"
    width: int = 1100
    height: int = 720
    whole: bool = False
    until: str = "#live h1"


SHOTS = (
    Shot("console-overview", "overview"),
    Shot("console-group", "group", height=1_180, until=".map rect"),
    Shot("console-group-dark", "group", "dark", height=820, until=".map rect"),
    Shot("console-rebalancing", "rebalancing", height=640),
    Shot("console-action", "action", height=620),
    Shot("console-small", "group", width=390, height=844),
)


async def take(scene: Scene, folder: Path) -> list[Path]:
    """Take every picture; returns their files."""
    taken = []
    async with open_browser() as browser:
        for shot in SHOTS:
            size = {"width": shot.width, "height": shot.height}
            context = await browser.new_context(color_scheme=shot.scheme, viewport=size, reduced_motion="reduce")  # type: ignore[arg-type]
            page = await context.new_page()
            await _show(page, scene.url + PAGES[shot.page], shot.until)
            taken.append(folder / f"{shot.name}.png")
            await page.screenshot(path=taken[-1])
            await context.close()
    return taken


async def _show(page: Page, url: str, until: str) -> None:
    await page.goto(url)
    await expect(page.locator(until).first).to_be_visible()


def main(folder: Path) -> None:
    """A fleet in which somebody has just gone, so that there is something to see."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rota-console-") as directory:
        for scene in scene_in(Path(directory)):
            scene.open(workers=4, candidates=3)
            scene.kill("indexer-3")
            scene.until_stable(WORKERS, 3)
            for file in asyncio.run(take(scene, folder)):
                print(f"{file}: {file.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
