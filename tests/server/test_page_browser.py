"""The page in headless Chromium: needs `playwright` and a Chromium; without either, nothing is run here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine, serving, state_of, wait_until

from milepost.config import EngineConfig
from milepost.engine.async_llm import AsyncLLM

playwright = pytest.importorskip("playwright.sync_api")
Browser, Page, expect = playwright.Browser, playwright.Page, playwright.expect

STORY = (
    "Ada enters the barn. Bob enters the kitchen. Cleo takes the lamp to the barn. Dan goes to the attic. Bob goes to "
    "the cellar. Ada takes the cup to the garden. Cleo enters the hall. Dan takes the lamp to the kitchen. "
)
FOCUS_SHOWS = """() => {
    const focused = document.activeElement;
    const bar = focused.querySelector(".reach");
    const { outlineStyle, stroke } = getComputedStyle(bar ?? focused);
    return focused === document.body || (bar ? stroke : outlineStyle) !== "none";
}"""
PHONE = {"width": 360, "height": 740}


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Fails where a script fails, or does what the policy forbids. Pictures go to MILEPOST_SCREENSHOTS."""
    context = browser.new_context(**getattr(request, "param", {"viewport": {"width": 1360, "height": 850}}))
    page, problems = context.new_page(), []
    page.set_default_timeout(30_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
    yield page
    if folder := os.environ.get("MILEPOST_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{request.node.name}.png")
    context.close()
    assert problems == []


@pytest.fixture(scope="module")
def tiny() -> Iterator[str]:
    """A real server with the hybrid model of the package."""
    engine = AsyncLLM.from_config(
        EngineConfig(model="milepost-tiny", kv_cache_memory_bytes=64 * 2**20, max_num_seqs=4, num_threads=1)
    )
    with serving(state_of(engine)) as url:  # type: ignore[arg-type]
        yield url
    engine.shutdown()


def opened(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator("#health")).to_have_attribute("data-state", "ok")
    expect(page.locator("#model")).not_to_be_empty()


def ask(page: Page, text: str) -> None:
    """Says `text` and waits for the end of the answer."""
    page.locator("#prompt").fill(text)
    page.locator("#prompt").press("Enter")
    ended(page)


def ended(page: Page) -> None:
    expect(page.locator("#announcer")).to_contain_text("The answer is there")
    expect(page.locator("#send")).to_be_visible()


def test_a_chat_and_what_its_second_turn_reuses(page: Page, tiny: str) -> None:
    opened(page, tiny)
    page.locator("#prompt").press("Tab")
    ask(page, STORY + "Where is Ada?")
    answers = page.locator("[data-role=assistant]")
    expect(answers).to_have_count(1)
    expect(answers.first.locator(".reused")).to_contain_text("reused 0 of")
    expect(answers.first.locator(".why")).to_have_text("Nothing known begins like this prompt.")
    ask(page, "Ada goes to the cellar. Where is Ada?")
    expect(answers.nth(1).locator(".speed")).to_contain_text("first after")
    expect(answers.nth(1).locator(".reused")).to_contain_text(re.compile(r"reused (6[4-9]|[7-9]\d) of"))
    expect(answers.nth(1).locator(".reuse .resumed")).to_be_visible()
    expect(page.locator("#context-text")).to_contain_text("of 4,096")
    assert int(page.locator("#context-meter").get_attribute("aria-valuenow") or 0) > 64
    expect(page.locator("#tree .node").first).to_be_visible()
    expect(page.locator("#cache-numbers")).to_contain_text("States used")
    page.reload()
    expect(answers).to_have_count(2)


def test_the_tree_shows_who_shares_and_where_states_are(page: Page, tiny: str) -> None:
    opened(page, tiny)
    for place in ("barn", "attic"):
        page.locator("#new-chat").click()
        ask(page, STORY * 5 + f"Who is in the {place}?")
    expect(page.locator("#tree .node.shared")).not_to_have_count(0)
    expect(page.locator("#tree .mark.grid")).not_to_have_count(0)
    page.locator("#tree .node[tabindex='0']").focus()
    for key in ("Home", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    expect(page.locator("#tree-node")).to_contain_text("shared by")
    expect(page.locator("#tree-node")).to_contain_text("state")


def test_versions_of_answers_and_messages(page: Page) -> None:
    with serving(
        state_of(FakeEngine(reply=lambda prompt: f"to **{prompt.count('<user>')}**: {prompt[-30:-11]}"))
    ) as url:
        opened(page, url)
        ask(page, "one")
        ask(page, "two")
        page.locator("[data-role=user]").first.locator("[data-do=edit]").click()
        page.keyboard.press("End")
        page.keyboard.type(" again")
        page.keyboard.press("Enter")
        ended(page)
        messages = page.locator(".message")
        expect(messages).to_have_count(2)
        expect(messages.nth(1).locator("strong")).to_have_text("1")
        page.locator("[data-do=regenerate]").click()
        expect(messages.nth(1)).to_contain_text("2/2")
        messages.first.locator("[data-turn='-1']").click()
        expect(messages).to_have_count(4)
        expect(messages.first.locator(".text")).to_have_text("one")
        page.locator("#prompt").press("ArrowUp")
        assert page.evaluate("document.activeElement.value") == "two"
        page.keyboard.press("Escape")
        expect(messages).to_have_count(4)


def test_stop_ends_the_request(page: Page) -> None:
    engine = FakeEngine(step_s=0.02, endless=True)
    engine.max_model_len = 100_000
    with serving(state_of(engine)) as url:
        opened(page, url)
        page.locator("#prompt").fill("go on")
        page.locator("#prompt").press("Enter")
        expect(page.locator("[data-role=assistant] .text")).to_contain_text("Paris")
        page.keyboard.press("Escape")
        expect(page.locator(".speed")).to_contain_text("stopped")
        expect(page.locator(".speed")).to_contain_text("tok/s")
        expect(page.locator(".reused")).to_contain_text("reused 0 of")
        expect(page.locator(".why")).to_be_visible()
        wait_until(lambda: not engine.running)


def test_what_a_model_writes_is_never_html(page: Page) -> None:
    reply = "<img src=x onerror=alert(1)> [x](javascript:alert(1)) ![y](https://a.example/b.png)\n\n```html\n<b>\n```\n"
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with serving(state_of(FakeEngine(reply=reply))) as url:
        opened(page, url)
        ask(page, "<script>alert(2)</script>")
        answer = page.locator("[data-role=assistant] .text")
        expect(answer).to_contain_text("<img src=x onerror=alert(1)>")
        expect(answer.locator("img")).to_have_count(0)
        expect(answer.locator("a")).to_have_count(1)
        expect(answer.locator("pre")).to_have_text("<b>")
        expect(page.locator("[data-role=user] .text")).to_have_text("<script>alert(2)</script>")
        assert all(address.startswith(url) for address in asked)


def test_an_error_is_told_with_its_hint(page: Page) -> None:
    with serving(state_of(FakeEngine())) as url:
        opened(page, url)
        page.locator("#prompt").fill("x" * 300)
        page.locator("#prompt").press("Enter")
        expect(page.locator("[role=alert]")).to_contain_text("256")
        expect(page.locator("#send")).to_be_visible()


def test_keys(browser: Browser) -> None:
    with serving(state_of(FakeEngine(), api_keys=("schlüssel",))) as url:
        context = browser.new_context()
        with pytest.raises(playwright.Error, match="AUTH"):  # it would ask a person
            context.new_page().goto(url)
        context.close()
        context = browser.new_context(http_credentials={"username": "any", "password": "schlüssel"})
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#key-dialog")).to_be_visible()
        page.locator("#key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-problem")).to_contain_text("does not know")
        page.locator("#key").fill("schlüssel")
        page.keyboard.press("Enter")
        expect(page.locator("#key-dialog")).to_be_hidden()
        expect(page.locator("#model")).to_have_text("fake")
        ask(page, "hello")
        expect(page.locator("[data-role=assistant] .text")).to_contain_text("Paris")
        expect(page.locator("#tree-about")).to_contain_text("of this key")
        context.close()


def test_it_waits_for_the_model(page: Page) -> None:
    state = state_of(None)
    with serving(state) as url:
        state.loading(5, 20)
        page.goto(url)
        expect(page.locator("#health")).to_have_text("loading, 25 %")
        state.ready(FakeEngine())
        expect(page.locator("#model")).to_have_text("fake")


@pytest.mark.parametrize("page", [{"viewport": PHONE, "has_touch": True, "color_scheme": "dark"}], indirect=True)
def test_on_a_phone(page: Page, tiny: str) -> None:
    def fits() -> bool:
        return page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]

    opened(page, tiny)
    ask(page, STORY + "Where is Dan?\n\n" + "x" * 80)
    assert fits()
    expect(page.locator("#cache")).to_be_hidden()
    page.locator("#show-cache").tap()
    expect(page.locator("#tree .node").first).to_be_visible()
    expect(page.locator("#chat")).to_be_hidden()
    assert fits()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 20)"
    heights = page.locator("button:visible").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert min(heights) >= 32


def test_everything_is_reached_by_keyboard_and_shows_it(page: Page, tiny: str) -> None:
    opened(page, tiny)
    ask(page, "Ada enters the barn. Where is Ada?")
    page.evaluate("document.activeElement.blur()")
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel"))
        assert page.evaluate(FOCUS_SHOWS), seen[-1]
    assert {"new-chat", "open-settings", "messages", "Edit", "Regenerate", "prompt", "send"} <= set(seen)
