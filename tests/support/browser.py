"""A headless Chromium for tests that look at pages as people do.

`python -m tests.support.browser` is run by make before the tests: where no Chromium is installed it unpacks Debian's.
Tests drive it with Playwright, whose own download of browsers is not used.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from tests.support.debian_package import main as get_programs
from tests.support.debian_package import program

_HEADLESS_SHELL = "chromium-headless-shell"
_INSTALLED = ("chromium", "chromium-browser", "google-chrome")
# As root there is no sandbox to be had, and where /dev/shm is small, as in containers, it must not be used.
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb", "--hide-scrollbars"]


@asynccontextmanager
async def open_browser(*flags: str) -> AsyncIterator[Browser]:
    """A browser of its own with more flags; use it inside one event loop, and close it in the same."""
    executable, env = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable, args=[*_FLAGS, *flags], env={**os.environ, **env}
        )
        try:
            yield browser
        finally:
            await browser.close()


def chromium() -> tuple[Path, dict[str, str]]:
    """The browser's program, and the environment that it needs to find its libraries and fonts."""
    if installed := _installed():
        return Path(installed), {}
    wrapper, env = program(_HEADLESS_SHELL)
    unpacked = wrapper.parent.parent / "lib" / "chromium" / _HEADLESS_SHELL
    # The wrapper knows only of /usr.
    return (unpacked, {**env, **_fonts()}) if unpacked.is_relative_to(sys.prefix) else (wrapper, env)


def _installed() -> str | None:
    return next(filter(None, map(shutil.which, _INSTALLED)), None)


def _fonts() -> dict[str, str]:
    """A machine without fonts has no list of folders with fonts either."""
    root = Path(sys.prefix) / "debian"
    listed = root / "fonts.conf"
    folders = "".join(f"<dir>{folder}</dir>" for folder in (root / "usr/share/fonts", "/usr/share/fonts"))
    cache = f"<cachedir>{root / 'fonts-cache'}</cachedir>"
    listed.write_text(f'<?xml version="1.0"?><fontconfig>{folders}{cache}</fontconfig>\n')
    return {"FONTCONFIG_FILE": str(listed)}


if __name__ == "__main__" and not _installed():
    get_programs([_HEADLESS_SHELL])
