"""A recorded run plays in a browser on a machine without a server, by keyboard alone, marked as recorded."""

import re

from playwright.sync_api import Page, expect

from lab.run.folder import RunFolder
from tests.browser.conftest import Dashboard, settled
from tests.browser.test_live_page import CANVAS, NEWEST
from tests.waiting import until


def test_a_recorded_run_plays_and_stops(page: Page, dashboard: Dashboard) -> None:
    page.goto(dashboard.page("live"))
    settled(page)
    button = page.get_by_role("button", name="Play it")
    expect(button).to_be_enabled()  # the first page of a server that has just begun
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/live?run=*")
    folder = RunFolder.open(re.findall(r"run=([a-z0-9-]+)", page.url)[0])
    assert folder.document["recorded"]["whole"]
    page.wait_for_selector(CANVAS)
    expect(page.get_by_text("Recorded on another machine")).to_be_visible()
    page.wait_for_function(f"() => {NEWEST} >= 1")
    expect(page.get_by_role("spinbutton")).to_have_count(0)  # nothing of it can be changed
    page.get_by_role("button", name="Stop").click(delay=120)
    until(lambda: not folder.status().active, "the replay to stop")
    assert folder.status().state == "cancelled"
    expect(page.get_by_text("The replay was stopped by the user")).to_be_visible()
