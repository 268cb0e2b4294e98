"""Pictures of the console for the docs, of a live service: `python -m tests.console.screenshots docs/images`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.async_api import Page, expect

from tests.console.keeper import keeper_in
from tests.console.scene import PAGES, SHORT_SESSION_MS, WORKERS, scene_in
from tests.support.browser import open_browser


@dataclass(frozen=True, slots=True)
class Shot:
    """A page as one sees it; `until` is what must be there first."""

    name: str
    path: str
    scheme: Literal["light", "dark"] = "light"
    width: int = 1100
    height: int = 720
    whole: bool = False
    until: str = "#live h1"


SHOTS = (
    Shot("console-overview", PAGES["overview"]),
    Shot("console-group", PAGES["group"], height=1_180, until=".map rect"),
    Shot("console-group-dark", PAGES["group"], "dark", height=820, until=".map rect"),
    Shot("console-rebalancing", PAGES["rebalancing"], height=640),
    Shot("console-timeline", PAGES["timeline"], height=760, until=".axis"),
    Shot("console-topic", PAGES["topic"], height=520),
    Shot("console-leaders", PAGES["leaders"], height=420, until="h1"),
    Shot("console-action", PAGES["action"], height=620),
    Shot("console-small", PAGES["group"], width=390, height=844),
)
OF_THE_KEEPER = (Shot("console-access", "/access", height=520, until="h1"),)


async def take(url: str, shots: Sequence[Shot], folder: Path, token: str = "") -> None:
    """Take these pictures of a server, as the holder of the token sees it."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with open_browser() as browser:
        for shot in shots:
            size = {"width": shot.width, "height": shot.height}
            context = await browser.new_context(
                color_scheme=shot.scheme,
                viewport=size,  # type: ignore[arg-type]
                reduced_motion="reduce",
                extra_http_headers=headers,
            )
            page = await context.new_page()
            await _show(page, url + shot.path, shot.until)
            file = folder / f"{shot.name}.png"
            await page.screenshot(path=file)
            await context.close()
            print(f"{file}: {file.stat().st_size // 1024} KiB")


async def _show(page: Page, url: str, until: str) -> None:
    await page.goto(url)
    await expect(page.locator(until).first).to_be_visible()


def main(folder: Path) -> None:
    """A fleet that a member has just left, so that there is something to see; and a server that has tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rota-console-") as directory:
        for scene in scene_in(Path(directory)):
            scene.open(workers=3, candidates=3)
            scene.add(WORKERS, "indexer-3", SHORT_SESSION_MS)
            scene.until_stable(WORKERS, 4)
            scene.kill("indexer-3")
            scene.until_stable(WORKERS, 3)
            asyncio.run(take(scene.url, SHOTS, folder))
        kept = Path(directory, "keeper")
        kept.mkdir()
        for keeper in keeper_in(kept):
            keeper.open()
            asyncio.run(take(keeper.url, OF_THE_KEEPER, folder, keeper.token))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
