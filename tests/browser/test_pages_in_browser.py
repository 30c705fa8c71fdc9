"""All pages as a person meets them: links, keyboard, light and dark, a screen reader's view, and no word to outside."""

import re
from pathlib import Path
from urllib.parse import urlparse

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from lab.run import launch
from lab.run.folder import RunFolder, runs
from lab.serve.triton import Server
from tests.browser.conftest import PROJECT, SETTLED, Dashboard, Feeder, settled
from tests.show import synthetic, synthetic_llm
from tests.show.test_memory_page import fleet_run
from tests.waiting import until

DONE = "20261130-010101-batching-seen"
KV_CACHE, LLM_BATCHING = "20261130-010201-kv-cache-seen", "20261130-010301-llm-batching-seen"
QUANTIZATION, FLEET = "20261130-010401-quantization-seen", "20261130-010501-multi-model-seen"
START = "Run the batching experiment"
# Streamlit's own menu puts its section headings between the items of a list, which axe counts as a broken list.
OURS = {"exclude": [["[data-testid=stSidebarNavItems]"]]}
PAGES = sorted(path.stem for path in (PROJECT / "pages").glob("*.py"))
LINKS = {
    "batching": "?run=" + DONE,
    "quantization": "?run=" + QUANTIZATION,
    "kv_cache": "?run=" + KV_CACHE,
    "scheduling": "?run=" + LLM_BATCHING,
    "memory": "?run=" + FLEET,
    "live": "?run=" + DONE,
    "compare": f"?base={DONE}.10&run={DONE}.12",
    "cost": "?run=" + DONE,
}
"""What a page is opened with, where it is about a run."""
BACKGROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 26)"}


@pytest.fixture(scope="module", autouse=True)
def finished(lab_home: Path) -> None:
    if not (lab_home / "runs" / DONE).exists():
        synthetic.batching_run(DONE, duration_s=2.0)
        synthetic_llm.run("kv_cache", KV_CACHE)
        synthetic_llm.run("llm_batching", LLM_BATCHING)
        synthetic_llm.run("quantization", QUANTIZATION)
        fleet_run(FLEET)


def test_a_link_works_on_a_server_that_nobody_has_opened_and_one_to_no_run_says_so_with_a_way_on(
    page: Page, cold_dashboard: Dashboard
) -> None:
    page.goto(cold_dashboard.page("batching", run=DONE))
    settled(page)
    expect(page.get_by_role("link", name="Dynamic batching")).to_be_visible()
    expect(page.get_by_role("link", name="app", exact=True)).to_have_count(0)
    expect(page.locator(".lab-plot")).to_have_count(5)

    page.goto(cold_dashboard.page("live", run="does-not-exist"))
    expect(page.get_by_text("there is no run 'does-not-exist'")).to_be_visible()
    page.get_by_role("link", name="See the runs there are").click(delay=120)
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    expect(page.get_by_text(DONE)).to_be_visible()


FIRST_PAINT = """({
  cards: document.querySelectorAll("[data-testid=stMetric], .lab-card").length,
  series: Math.max(0, ...[...document.querySelectorAll(".lab-plot")].map(
    (plot) => new Set(plot.data.map((trace, i) => trace.name ?? i)).size),
    ...(document.querySelector(".lab-recorder")?.recorder.panels.panels ?? []).map((panel) => panel.lines.length)),
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
})"""
# Whatever the keyboard reaches shows that it was reached: itself, or what frames it, looks otherwise than before. A
# table on a canvas draws its own mark.
UNSEEN_FOCUS = """async () => {
  const looks = (node) => {
    const seen = [];
    for (let at = node, up = 0; at && up < 5; at = at.parentElement, up += 1) {
      const style = getComputedStyle(at);
      seen.push(style.outline, style.boxShadow, style.borderColor, style.backgroundColor);
    }
    return seen.join(" ");
  };
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const every = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]:not(canvas)");
  const shown = (node) => node.checkVisibility({ visibilityProperty: true });
  const unseen = [];
  for (const node of [...every].filter((each) => each.tabIndex >= 0 && !each.disabled && shown(each))) {
    document.activeElement?.blur();
    if (node.matches("input, textarea")) await frame();
    const before = looks(node);
    node.focus({ preventScroll: true });
    const same = () => document.activeElement === node && looks(node) === before;
    for (let n = 0; same() && n < 60; n += 1) await frame(); // some are coloured by a script, or little by little
    if (same()) unseen.push(node.outerHTML.slice(0, 160));
  }
  return unseen;
}"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("quarter", range(4))
def test_every_page_in_light_and_dark_for_eye_ear_and_keyboard(quarter: int, page: Page, dashboard: Dashboard) -> None:
    """No serious violation that axe finds, no more at first paint than a glance takes in, a focus that is seen, no word
    to the outside and nothing that goes wrong."""
    asked: set[str] = set()
    wrong: list[str] = []
    page.on("request", lambda request: asked.add(urlparse(request.url).hostname or "local"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in PAGES[quarter::4]:
        page.emulate_media(color_scheme="light")
        page.goto(dashboard.page("" if name == "start" else name) + LINKS.get(name, ""))
        first = settled(page, FIRST_PAINT)
        if first["cards"] > 4 or first["series"] > 4 or first["wide"]:
            wrong.append(f"{name}: {first}")
        page.keyboard.press("Tab")  # from now on focus is shown as to who uses the keyboard
        wrong += [f"{name}: focus is not seen on {node}" for node in page.evaluate(UNSEEN_FOCUS)]
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # the page follows without a reload
            ground = "getComputedStyle(document.querySelector('.stApp')).backgroundColor"
            page.wait_for_function(f"() => {SETTLED} && {ground} === '{BACKGROUND[scheme]}'")
            rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}  # the rest knows no colours
            for violation in Axe().run(page, context=OURS, options=rules).response["violations"]:
                if violation["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:160] + " | " + node["failureSummary"][:300] for node in violation["nodes"]]
                    wrong.append(f"{name}, {scheme}: {violation['id']} {nodes[:3]}")
    assert not wrong, "\n".join(wrong)
    assert asked <= {"127.0.0.1", "local"}
    log = dashboard.log.read_text()
    for bad in ("Traceback", "missing ScriptRunContext", "torch.classes", "deprecat"):
        assert bad not in log, log[-3000:]


def test_choices_stay_in_the_link(page: Page, context: BrowserContext, dashboard: Dashboard) -> None:
    page.goto(dashboard.page("batching", run=DONE))
    settled(page)
    page.get_by_role("radio", name="5 ms delay", exact=True).click(delay=120)
    page.get_by_role("radio", name="10 %", exact=True).click(delay=120)
    expect(page.get_by_text("Executed batch sizes at 10 % of saturation")).to_be_visible()
    expect(page).to_have_url(re.compile("b_load="))
    other = context.new_page()
    other.goto(page.url)
    settled(other)
    expect(other.get_by_text("Executed batch sizes at 10 % of saturation")).to_be_visible()
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
    page.wait_for_url("**/live?run=*")
    (run_id,) = {info.run_id for info in runs()} - before
    assert run_id in page.url
    page.wait_for_selector(".lab-panels canvas")
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
    expect(page.get_by_role("button", name=START)).to_be_enabled()
    reach(START)
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?run=*")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    (run_id,) = going()
    reach("Stop")
    page.keyboard.press("Enter")
    until(lambda: ended(run_id), "the run to stop")


def test_the_start_button_rests_while_a_run_goes_on(page: Page, dashboard: Dashboard, feeder: Feeder) -> None:
    page.goto(dashboard.page())
    settled(page)
    expect(page.get_by_role("button", name=START)).to_be_disabled()
    page.get_by_role("link", name="Watch it").click(delay=120)
    page.wait_for_url(f"**/live?run={feeder.run_id}*")
