"""The pictures under docs/: every page in light and dark, from the recordings that come with the lab.

    .venv/bin/python scripts/pictures.py [PAGE …]      needs chromium; a page is a file of pages/ without its .py

PNG of 128 colours, which halves their size and shows on no page. LAB_HOME, where it is set, gives the runs: batching
has no recording, so its picture needs one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.browser.conftest import Dashboard, serving  # noqa: E402  after the path to it

SIZE = {"width": 1200, "height": 1400}
COLOURS = 128
PLAYED_MS = 15_000
READY = """() => !document.querySelector("[data-testid=stStatusWidget], [data-testid=stSkeleton]")
  && [...document.querySelectorAll(".lab-plot")].every((plot) => plot.querySelector(".main-svg"))"""


def main(wanted: list[str]) -> None:
    pages = wanted or sorted(path.stem for path in (ROOT / "pages").glob("*.py"))
    if not wanted and "LAB_HOME" not in os.environ:
        pages.remove("batching")
    pages.sort(key="live".__eq__)  # last: what it plays is then a run of this LAB_HOME
    with tempfile.TemporaryDirectory() as folder:
        home = Path(os.environ.setdefault("LAB_HOME", folder))
        with serving(home) as dashboard, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport=SIZE, color_scheme=scheme)
                for name in pages:
                    take(page, dashboard, name, ROOT / "docs" / f"{name.replace('_', '-')}-{scheme}.png")
            browser.close()


def take(page: Page, dashboard: Dashboard, name: str, path: Path) -> None:
    page.goto(dashboard.page("" if name == "start" else name))
    page.get_by_role("heading", level=1).wait_for(timeout=60_000)
    if name == "live":  # a recording plays with its own timing
        page.get_by_role("button", name="Play it").click()
        page.locator(".lab-panels canvas").first.wait_for(timeout=60_000)
        page.wait_for_timeout(PLAYED_MS)
    page.wait_for_function(READY, timeout=60_000)
    page.wait_for_timeout(500)  # fonts and the last paint
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:.0f} KiB", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
