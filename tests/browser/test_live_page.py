"""What only a browser can show of the live page: what the viewer did stays, and every browser sees the same run."""

import re
import signal
from typing import Any

from playwright.sync_api import BrowserContext, Page, Position, expect

from tests.browser.conftest import Dashboard, Feeder, settled

PLOT = ".lab-panels"
CANVAS = f"{PLOT} canvas"
RECORDER = "document.querySelector('.lab-recorder')?.recorder"
NEWEST = f"({RECORDER}?.panels.lines[0]?.x.at(-1) ?? -1)"
STATE = f"""(least) => {{
  const panels = {RECORDER}?.panels, newest = {NEWEST};
  return newest >= least && {{
    mark: document.querySelector("{PLOT}").mark ?? null,
    range: panels.shown.map((value) => Math.round(value * 100) / 100),
    whole: panels.range[1] - panels.range[0],
    hidden: [...panels.hidden],
    newest,
  }};
}}"""


def open_live(page: Page, dashboard: Dashboard, run_id: str) -> None:
    """The whole run: by default a page shows the last minute, which a slow machine may take to open it."""
    page.goto(dashboard.page("live", run=run_id, w="all"))
    page.wait_for_selector(CANVAS)
    state(page, least_s=2)  # there is something to zoom into
    expect(page.locator(".lab-card").first).to_be_visible()  # nothing comes above it any more
    settled(page)


def state(page: Page, least_s: float = 0) -> dict[str, Any]:
    """The panels as they stand once they show so many seconds: asked and read in one step, as a page may begin anew
    between two."""
    panels: dict[str, Any] = page.wait_for_function(STATE, arg=least_s).json_value()
    return panels


def after_ticks(page: Page, seconds: int) -> dict[str, Any]:
    """The state of the panels once they show so many more seconds."""
    return state(page, state(page)["newest"] + seconds)


def test_zoom_and_legend_stay_while_the_data_moves(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    said: list[Any] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: said.append(frame)))
    open_live(page, dashboard, feeder.run_id)
    page.evaluate(f"() => {{ document.querySelector('{PLOT}').mark = 'this very node'; }}")
    canvas = page.locator(CANVAS).first
    box = canvas.bounding_box()
    assert box is not None
    ends: list[Position] = [{"x": part * box["width"], "y": box["height"] / 2} for part in (0.2, 0.6)]
    canvas.drag_to(canvas, source_position=ends[0], target_position=ends[1])
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    page.get_by_role("button", name=re.compile("^p95")).click()
    before, said[:] = state(page), []
    after = after_ticks(page, 3)
    assert after["newest"] > before["newest"]
    assert after["mark"] == "this very node"
    assert after["range"] == before["range"]
    assert before["range"][1] - before["range"][0] < 0.5 * before["whole"]  # it was dragged over two fifths
    assert before["hidden"] == after["hidden"] == ["p95"]
    assert said == []  # Streamlit has nothing to do while the figures move: it would show in what is measured

    page.get_by_role("button", name="Reset zoom").click()
    assert state(page)["range"][0] == 0
    assert state(page)["hidden"] == ["p95"]


def test_values_are_read_and_zoomed_by_keyboard(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id)
    after_ticks(page, 3)
    page.locator(PLOT).focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".lab-aloud")).to_have_text(re.compile(r"^2 s: served [\d.]+ req/s, offered"))
    page.keyboard.press("+")
    low, high = state(page)["range"]
    assert 0 <= low < 2 < high
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    page.keyboard.press("Escape")
    expect(reset).to_be_hidden()
    page.keyboard.press("Tab")  # the first line's key
    page.keyboard.press("Space")
    assert state(page)["hidden"] == ["served"]


def test_a_reload_shows_the_same_run_further_on(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id)
    before, pid = state(page), feeder.folder.status().pid
    after_ticks(page, 1)
    page.reload()
    page.wait_for_selector(CANVAS)
    assert state(page, before["newest"] + 1)["newest"] > before["newest"]
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
        expect(view.get_by_text("Stopped by hand after")).to_be_visible()
        expect(view.get_by_role("button", name="Stop")).to_have_count(0)
    assert feeder.folder.status().state == "cancelled"
    other_context.close()


def test_a_killed_runner_shows_as_interrupted(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    open_live(page, dashboard, feeder.run_id)
    feeder.process.send_signal(signal.SIGKILL)
    feeder.process.wait()
    # 5 s promised (3 s of silence and a tick), the rest is for a busy machine.
    expect(page.get_by_text("Broke off after")).to_be_visible()
    expect(page.locator(PLOT)).to_be_visible()


def test_a_change_is_typed_undisturbed_applied_and_its_moment_marked(
    page: Page, dashboard: Dashboard, feeder: Feeder
) -> None:
    open_live(page, dashboard, feeder.run_id)
    no_switch_is_cut_off(page)
    rate = page.get_by_role("spinbutton", name="Rate, requests a second")
    rate.fill("12")
    after_ticks(page, 2)
    assert rate.input_value() == "12"
    assert feeder.folder.events()[-1]["kind"] == "block_start"  # nothing was sent half-typed
    rate.fill("150")
    rate.press("Enter")
    expect(page.get_by_text(re.compile(r"①\s+150 req/s"))).to_be_visible()
    page.wait_for_function(f"() => {RECORDER}?.panels.marks.length === 1")
    page.reload()
    expect(page.get_by_role("spinbutton", name="Rate, requests a second")).to_have_value("150")


def no_switch_is_cut_off(page: Page) -> None:
    switches = page.locator("[data-testid='stCheckbox']")
    expect(switches.first).to_be_visible()
    for switch in switches.all():
        cut = (
            """(all) => all.some((e) => getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth)"""
        )
        assert not switch.locator("[data-testid='stWidgetLabel'] *").evaluate_all(cut), switch.inner_text()
