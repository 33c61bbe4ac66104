"""The page of a report in a browser, where there is one: it runs under its own policy, by keyboard and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reports import THREE, report, run

from milepost.sim.report.page import page

playwright = pytest.importorskip("playwright.sync_api")

WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 360, "height": 740}


def opened(browser: Any, folder: Path, told: dict[str, Any], size: dict[str, int]) -> tuple[Any, list[str]]:
    """The page of a report, and what went wrong in it."""
    (folder / "report.html").write_text(page(told), encoding="utf-8")
    shown, problems = browser.new_page(viewport=size), []
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.on("console", lambda said: problems.append(said.text))
    shown.on("request", lambda asked: problems.append(asked.url) if not asked.url.startswith("file:") else None)
    shown.goto((folder / "report.html").as_uri())
    return shown, problems


def test_pictures_follow_the_keyboard(browser: Any, tmp_path: Path) -> None:
    shown, problems = opened(browser, tmp_path, THREE, WIDE)
    assert shown.locator("#rates .policy").count() == 4
    assert "Of ours with 8" in shown.locator("#memory-about").inner_text()
    shown.keyboard.press("Tab")
    shown.keyboard.press("ArrowRight")
    assert shown.locator("#ranking legend").inner_text() == "With 16\u00a0GB"
    shown.keyboard.press("Tab")
    shown.keyboard.press("ArrowUp")
    assert "Of oracle with 16" in shown.locator("#memory-about").inner_text()
    assert shown.locator("#memory svg .kv").count() == 1
    assert problems == []


def test_the_choice_is_seen_without_scrolling(browser: Any, tmp_path: Path) -> None:
    shown, _ = opened(browser, tmp_path, THREE, WIDE)
    for what in ("h1", "pre", "#rates svg", "#ranking"):
        box = shown.locator(what).bounding_box()
        assert box["y"] + box["height"] <= WIDE["height"], what


@pytest.mark.parametrize("told", [THREE, report(run("a", 1, 0.5, "")), report()], ids=["three", "one", "none"])
def test_a_phone_scrolls_in_one_direction(browser: Any, tmp_path: Path, told: dict[str, Any]) -> None:
    shown, problems = opened(browser, tmp_path, told, PHONE)
    assert shown.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert problems == []
