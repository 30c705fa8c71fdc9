"""All pages as a person meets them: links, keyboard, light and dark, a screen reader's view, and no word to outside."""

import itertools
import json
from pathlib import Path
from urllib.parse import urlparse

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from lab.run import launch
from lab.run.folder import RunFolder, runs
from lab.serve.triton import Server
from tests.browser.conftest import LIMIT_MS, Dashboard, Feeder
from tests.show import synthetic, synthetic_llm
from tests.waiting import until

DONE = "20261130-010101-batching-seen"
KV_CACHE, LLM_BATCHING = "20261130-010201-kv-cache-seen", "20261130-010301-llm-batching-seen"
START = "Run the batching experiment"
# Streamlit's own menu puts its section headings between the items of a list, which axe counts as a broken list.
OURS = {"exclude": [["[data-testid=stSidebarNavItems]"]]}
TOUR = (
    "",
    "batching?run=" + DONE,
    "kv_cache?run=" + KV_CACHE,
    "scheduling?run=" + LLM_BATCHING,
    "try_it",
    "live?run=" + DONE,
    "runs",
    f"compare?base={DONE}.10&run={DONE}.12",
    "cost?run=" + DONE,
    "system",
)


@pytest.fixture(scope="module", autouse=True)
def finished(lab_home: Path) -> None:
    if not (lab_home / "runs" / DONE).exists():
        synthetic.batching_run(DONE, duration_s=2.0)
        synthetic_llm.run("kv_cache", KV_CACHE)
        synthetic_llm.run("llm_batching", LLM_BATCHING)


def settled(page: Page) -> None:
    """The page has its title, its charts, and no script runs."""
    expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=LIMIT_MS)
    page.wait_for_function(
        """() => !document.querySelector("[data-testid=stStatusWidget], [data-testid=stSkeleton]")
          && [...document.querySelectorAll(".lab-plot")].every((plot) => plot.querySelector(".main-svg"))"""
    )
    expect(page.locator("[data-stale=true]")).to_have_count(0)


def test_a_link_works_on_a_server_that_nobody_has_opened(page: Page, cold_dashboard: Dashboard) -> None:
    page.goto(cold_dashboard.page("batching", run=DONE))
    settled(page)
    expect(page.get_by_role("link", name="Dynamic batching")).to_be_visible()
    expect(page.get_by_role("link", name="app", exact=True)).to_have_count(0)
    expect(page.locator(".lab-plot")).to_have_count(5)


def test_an_unknown_run_is_told_with_a_way_on(page: Page, dashboard: Dashboard) -> None:
    page.goto(dashboard.page("live", run="does-not-exist"))
    expect(page.get_by_text("there is no run 'does-not-exist'")).to_be_visible(timeout=LIMIT_MS)
    page.get_by_role("link", name="See the runs there are").click(delay=120)
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs", timeout=LIMIT_MS)
    expect(page.get_by_text(DONE)).to_be_visible()


def test_no_serious_accessibility_violation_in_light_and_dark(page: Page, dashboard: Dashboard) -> None:
    found = {}
    for scheme, path in itertools.product(("light", "dark"), TOUR):
        page.emulate_media(color_scheme=scheme)
        page.goto(dashboard.page(path))
        settled(page)
        for violation in Axe().run(page, context=OURS).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                nodes = [node["html"][:160] + " | " + node["failureSummary"][:300] for node in violation["nodes"][:3]]
                found[f"{scheme} /{path} {violation['id']}"] = nodes
    assert not found, json.dumps(found, indent=1)


def test_nothing_is_asked_of_the_outside_and_nothing_goes_wrong(page: Page, dashboard: Dashboard) -> None:
    asked: set[str] = set()
    wrong: list[str] = []
    page.on("request", lambda request: asked.add(urlparse(request.url).hostname or "local"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for path in TOUR:
        page.goto(dashboard.page(path))
        settled(page)
    assert asked <= {"127.0.0.1", "local"}
    assert wrong == []
    log = dashboard.log.read_text()
    for bad in ("Traceback", "missing ScriptRunContext", "torch.classes", "deprecat"):
        assert bad not in log, log[-3000:]


def test_charts_follow_a_change_of_theme_without_a_reload(page: Page, dashboard: Dashboard) -> None:
    page.goto(dashboard.page("batching", run=DONE))
    settled(page)
    colour = "() => getComputedStyle(document.querySelector('.lab-plot .xtick text')).fill"
    light = page.evaluate(colour)
    page.evaluate("() => { document.querySelector('.lab-plot').mark = 1; }")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"(before) => ({colour})() !== before", arg=light)
    assert (light, page.evaluate(colour)) == ("rgb(85, 96, 110)", "rgb(154, 167, 181)")  # @muted, light and dark
    assert page.evaluate("() => document.querySelector('.lab-plot').mark") == 1


def test_choices_stay_in_the_link(page: Page, context: BrowserContext, dashboard: Dashboard) -> None:
    page.goto(dashboard.page("batching", run=DONE))
    settled(page)
    page.get_by_role("radio", name="5 ms delay", exact=True).click(delay=120)
    page.get_by_role("radio", name="10 %", exact=True).click(delay=120)
    expect(page.get_by_text("Executed batch sizes at 10 % of saturation")).to_be_visible(timeout=LIMIT_MS)
    other = context.new_page()
    other.goto(page.url)
    settled(other)
    expect(other.get_by_text("Executed batch sizes at 10 % of saturation")).to_be_visible(timeout=LIMIT_MS)
    expect(other.get_by_role("radio", name="5 ms delay", exact=True)).to_be_checked()


def going() -> list[str]:
    return [info.run_id for info in runs() if info.state in ("queued", "starting", "warm-up", "running", "draining")]


def ended(run_id: str) -> bool:
    return not RunFolder.open(run_id).status().active


@pytest.mark.triton
def test_a_double_click_starts_one_run(page: Page, dashboard: Dashboard, triton_server: Server) -> None:
    before = {info.run_id for info in runs()}
    page.goto(dashboard.page())
    settled(page)
    page.get_by_role("button", name=START).dblclick(delay=40)
    page.wait_for_url("**/live?run=*", timeout=60_000)
    (run_id,) = {info.run_id for info in runs()} - before
    assert run_id in page.url
    page.wait_for_selector(".lab-panels canvas", timeout=60_000)
    launch.stop(run_id)
    until(lambda: ended(run_id), "the run to stop")
    assert {info.run_id for info in runs()} - before == {run_id}


@pytest.mark.triton
def test_a_run_is_started_and_stopped_by_keyboard_alone(
    page: Page, dashboard: Dashboard, triton_server: Server
) -> None:
    def reach(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate("() => document.activeElement.closest('button')?.innerText ?? ''")
            if name in focused:
                return
        raise AssertionError(f"60 tabs did not reach {name!r}")

    page.goto(dashboard.page())
    settled(page)
    expect(page.get_by_role("button", name=START)).to_be_enabled(timeout=LIMIT_MS)
    reach(START)
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?run=*", timeout=60_000)
    expect(page.get_by_role("button", name="Stop")).to_be_visible(timeout=60_000)
    (run_id,) = going()
    reach("Stop")
    page.keyboard.press("Enter")
    until(lambda: ended(run_id), "the run to stop")


def test_the_start_button_rests_while_a_run_goes_on(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    page.goto(dashboard.page())
    settled(page)
    expect(page.get_by_role("button", name=START)).to_be_disabled()
    page.get_by_role("link", name="Watch it").click(delay=120)
    page.wait_for_url(f"**/live?run={feeder.run_id}*", timeout=LIMIT_MS)
