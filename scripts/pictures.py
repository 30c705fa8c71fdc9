"""The pictures under docs/: every page in light and dark, from the recordings that come with the lab.

    .venv/bin/python scripts/pictures.py [PAGE …]      needs chromium; a page is a file of pages/ without its .py

PNG of 128 colours, which halves their size and shows on no page. A page is opened as LINKS say, on a LAB_HOME where
nothing has run; where one is set, its runs stand in the place of the recordings.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from lab.run import cassette  # noqa: E402  after the path to it
from tests.browser.conftest import Dashboard, serving  # noqa: E402

WIDTH, LEAST, MOST = 1200, 940, 1400
"""Of a picture, in pixels; as high as the page is, within these."""
COLOURS = 128
PLAYED_MS = 15_000
LINKS: dict[str, dict[str, Any]] = {
    "compare": {"base": "quantization.4", "run": ["quantization.5", "quantization.7"], "c_view": "Quality"},
    "drills": {"d_deck": "Levers"},
    "review": {"run": "batching", "v_level": "2 ms delay", "v_load": "80 % of saturation", "v_rate": "600",
               "v_latency": "30", "v_memory": "200"},
    "rollout": {"o_part": "Canary, rehearsed"},
}  # fmt: skip
"""What of a page is shown, where it is not what it opens with; a run is named by its experiment."""
READY = """() => !["StatusWidget", "Skeleton", "Spinner"].some((of) => document.querySelector(`[data-testid=st${of}]`))
  && [...document.querySelectorAll(".lab-plot")].every((plot) => plot.querySelector(".main-svg"))"""
HEIGHT = "() => document.querySelector('[data-testid=stMainBlockContainer]').getBoundingClientRect().bottom"


def main(wanted: list[str]) -> None:
    pages = wanted or sorted(path.stem for path in (ROOT / "pages").glob("*.py"))
    pages.sort(key="live".__eq__)  # last: what it plays is then a run of this LAB_HOME
    with tempfile.TemporaryDirectory() as folder:
        home = Path(os.environ.setdefault("LAB_HOME", folder))
        with serving(home) as dashboard, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name in pages:
                for scheme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": WIDTH, "height": MOST}, color_scheme=scheme)
                    take(page, dashboard, name, ROOT / "docs" / f"{name.replace('_', '-')}-{scheme}.png")
                    page.close()
            browser.close()


def take(page: Page, dashboard: Dashboard, name: str, path: Path) -> None:
    params = {key: recorded(value) if key in ("run", "base") else value for key, value in LINKS.get(name, {}).items()}
    page.goto(dashboard.page("" if name == "start" else name) + f"?{urlencode(params, doseq=True)}")
    page.get_by_role("heading", level=1).wait_for(timeout=60_000)
    page.wait_for_load_state("networkidle")  # what a page is drawn with is fetched when it is first needed
    if name == "live":  # a recording plays with its own timing
        page.get_by_role("button", name="Play it").click()
        page.locator(".lab-panels canvas").first.wait_for(timeout=60_000)
        page.wait_for_timeout(PLAYED_MS)
    page.wait_for_function(READY, timeout=60_000)
    page.wait_for_timeout(2_000)  # what is computed first shows nothing of what comes after it
    page.wait_for_function(READY, timeout=60_000)
    if name == "drills":
        page.get_by_role("spinbutton").first.fill("3")
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Show the answer").click(delay=120)
        page.locator(".lab-plot .main-svg").first.wait_for(timeout=60_000)
        page.wait_for_function(READY, timeout=60_000)
    page.wait_for_timeout(500)  # fonts and the last paint
    height = min(MOST, max(LEAST, round(page.evaluate(HEIGHT))))
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    if name == "live":  # else the next picture finds it going
        page.get_by_role("button", name="Stop").click(delay=120)
        page.get_by_role("button", name="Stop").wait_for(state="detached", timeout=60_000)
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:.0f} KiB", file=sys.stderr)


def recorded(value: Any) -> Any:
    """The recorded run of an experiment, or of each; "EXPERIMENT.CELL" is a cell of it."""
    if isinstance(value, list):
        return [recorded(one) for one in value]
    experiment, dot, cell = value.partition(".")
    found = cassette.of_experiment(experiment)
    return value if found is None else f"{found.run}{dot}{cell}"


if __name__ == "__main__":
    main(sys.argv[1:])
