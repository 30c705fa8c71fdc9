"""What only a browser can show of "Try it": text that grows, a Stop that ends the model's work, any kind of prompt."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Dashboard, serving, settled
from tests.waiting import until

ANSWER = ".lab-answer"
GROWING = f"{ANSWER}:has(.lab-caret)"


@pytest.fixture(scope="module")
def writer(lab_home: Path, browser: Browser) -> Iterator[Dashboard]:
    with serving(lab_home, "tests.browser.with_a_writer") as found:
        yield found


def heard(lab_home: Path) -> list[str]:
    log = lab_home / "writer.log"
    return log.read_text().splitlines() if log.exists() else []


def words(page: Page, where: str) -> int:
    """How many words stand in the answer; they are w1 w2 … in order."""
    found = re.findall(r"w\d+", page.locator(where).inner_text())
    assert found == [f"w{n}" for n in range(1, len(found) + 1)]
    return len(found)


def test_a_stop_keeps_the_text_and_ends_the_model_and_it_writes_again(
    page: Page, writer: Dashboard, lab_home: Path
) -> None:
    page.goto(writer.page("try_it"))
    settled(page)
    for turn in (1, 2):
        write = page.get_by_role("button", name="Write")
        expect(write).to_be_enabled()
        write.click(delay=120)
        page.wait_for_function(f"() => document.querySelector('{GROWING}')?.innerText.includes('w5')")
        seen = words(page, GROWING)
        page.get_by_role("button", name="Stop", exact=True).click(delay=120)
        expect(page.get_by_text(re.compile(r"It was stopped: \d+ tokens"))).to_be_visible()
        expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
        expect(page.locator(GROWING)).to_have_count(0)
        kept = words(page, ANSWER)
        assert seen <= kept
        until(lambda turn=turn: heard(lab_home).count("let go") == turn, "the model to be let go")
        expect(page.get_by_text(f"It was stopped: {kept} tokens")).to_be_visible()
        expect(page.locator(ANSWER)).to_have_count(1)
    expect(page.get_by_role("heading", name="When each token came")).to_be_visible()


def test_a_prompt_that_cannot_be_asked_says_why_and_the_one_just_typed_is_asked(
    page: Page, writer: Dashboard, lab_home: Path
) -> None:
    page.goto(writer.page("try_it"))
    settled(page)
    prompt, write = page.get_by_role("textbox", name="Prompt"), page.get_by_role("button", name="Write")
    expect(write).to_be_enabled()
    prompt.fill("")
    prompt.press("Tab")
    expect(page.get_by_text("There is no prompt yet")).to_be_visible()
    expect(write).to_be_disabled()
    prompt.fill("why " * 1500)  # as a paste: all at once
    prompt.press("Tab")
    expect(page.get_by_text("The prompt has 6,000 characters; allowed: 4,000")).to_be_visible()
    expect(write).to_be_disabled()
    prompt.fill("Why?")
    prompt.press("Tab")
    expect(write).to_be_enabled()
    # The click on the button takes the focus from the text, which is when the text is sent.
    prompt.fill("Typed a moment ago")
    write.click(delay=120)
    until(lambda: "asked Typed a moment ago" in heard(lab_home), "the new prompt to be asked")
    page.wait_for_function(f"() => document.querySelector('{GROWING}')?.innerText.includes('w2')")
    page.get_by_role("button", name="Stop", exact=True).click(delay=120)
    expect(page.get_by_text(re.compile(r"It was stopped: \d+ token"))).to_be_visible()
