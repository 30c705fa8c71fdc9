"""What only a browser can show of the live page: what the viewer did stays, and every browser sees the same run."""

import re
import signal
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import LIMIT_MS, Dashboard, Feeder

PLOT = ".lab-plot"
CARDS = "[data-testid=stMetricValue]"
READ = """() => {
  const plot = document.querySelector(".lab-plot");
  const served = plot.data.find((trace) => trace.name === "served");
  return {
    mark: plot.mark ?? null,
    range: plot.layout.xaxis.range.map((value) => Math.round(value * 100) / 100),
    hidden: plot.data.filter((trace) => trace.visible === "legendonly").map((trace) => trace.name),
    newest: plot._fullData[1]._length,
    served: served.name,
  };
}"""


def open_live(page: Page, dashboard: Dashboard, run_id: str, **params: str) -> None:
    page.goto(dashboard.page("live", run=run_id, **params))
    page.wait_for_selector(f"{PLOT} .main-svg", timeout=LIMIT_MS)
    # Two whole seconds drawn: there is something to zoom into.
    page.wait_for_function("() => document.querySelector('.lab-plot')?._fullData?.[1]?._length >= 3")


def after_ticks(page: Page, ticks: int) -> dict[str, Any]:
    """The state of the plot after so many more redraws with new data."""
    wait = """(ticks) => new Promise((resolve) => {
      const plot = document.querySelector(".lab-plot");
      let seen = 0, length = plot._fullData[1]._length;
      plot.on("plotly_afterplot", () => {
        if (plot._fullData[1]._length > length) { length = plot._fullData[1]._length; seen += 1; }
        if (seen >= ticks) resolve(true);
      });
    })"""
    page.evaluate(wait, ticks)
    return page.evaluate(READ)


def test_zoom_and_legend_stay_while_the_data_moves(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id)
    page.evaluate("() => { document.querySelector('.lab-plot').mark = 'this very node'; }")
    box = page.locator(f"{PLOT} .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    page.locator(f"{PLOT} .legend2toggle").nth(1).click()  # p50, p95, p99
    page.wait_for_function("() => document.querySelector('.lab-plot')?.data?.some((t) => t.visible === 'legendonly')")
    before = page.evaluate(READ)
    after = after_ticks(page, 3)
    assert after["newest"] > before["newest"]
    assert after["mark"] == "this very node"
    assert after["range"] == before["range"]
    assert before["hidden"] == after["hidden"] == ["p95"]

    page.get_by_role("button", name="Reset zoom").click()
    page.wait_for_function(f"() => document.querySelector('{PLOT}').layout.xaxis.range[0] === 0")
    assert page.evaluate(READ)["hidden"] == ["p95"]


def test_a_reload_shows_the_same_run_further_on(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id, w="all")
    before, pid = page.evaluate(READ), feeder.folder.status().pid
    after_ticks(page, 1)
    page.reload()
    page.wait_for_selector(f"{PLOT} .main-svg", timeout=LIMIT_MS)
    page.wait_for_function(f"() => document.querySelector('{PLOT}')._fullData?.[1]?._length > {before['newest']}")
    assert feeder.run_id in page.url and "w=all" in page.url
    assert feeder.folder.status().pid == pid
    expect(page.get_by_role("heading", level=1)).to_have_text("digits under load")


def test_a_second_browser_stops_the_run_for_both(
    page: Page, context: BrowserContext, dashboard: Dashboard, feeder: Feeder
) -> None:
    open_live(page, dashboard, feeder.run_id)
    other_context = context.browser.new_context()
    other = other_context.new_page()
    open_live(other, dashboard, feeder.run_id)
    other.get_by_role("button", name="Stop").click(delay=120)
    for view in (other, page):
        expect(view.get_by_text("Stopped by hand after")).to_be_visible(timeout=LIMIT_MS)
        expect(view.get_by_role("button", name="Stop")).to_have_count(0)
    assert feeder.folder.status().state == "cancelled"
    other_context.close()


def test_a_killed_runner_shows_as_interrupted(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id)
    feeder.process.send_signal(signal.SIGKILL)
    feeder.process.wait()
    # 5 s promised (3 s of silence and a tick), the rest is for a busy machine.
    expect(page.get_by_text("Broke off after")).to_be_visible(timeout=10_000)
    expect(page.locator(PLOT)).to_be_visible()


def test_a_change_is_applied_and_its_moment_marked(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id)
    rate = page.get_by_role("spinbutton", name="Rate, requests a second")
    rate.fill("150")
    rate.press("Enter")
    expect(page.get_by_text(re.compile(r"1\s+150 req/s"))).to_be_visible(timeout=LIMIT_MS)
    line = "() => document.querySelector('.lab-plot')?.layout.shapes.filter((s) => s.xref === 'x').length === 1"
    page.wait_for_function(line, timeout=LIMIT_MS)  # drawn a moment after its words
    expect(page.get_by_text("150 req/s").first).to_be_visible(timeout=LIMIT_MS)
    page.reload()
    expect(page.get_by_role("spinbutton", name="Rate, requests a second")).to_have_value("150", timeout=LIMIT_MS)


def test_typing_is_not_disturbed_by_the_tick(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id)
    rate = page.get_by_role("spinbutton", name="Rate, requests a second")
    rate.fill("12")
    after_ticks(page, 2)
    assert rate.input_value() == "12"
    assert feeder.folder.events()[-1]["kind"] == "block_start"  # nothing was sent half-typed
