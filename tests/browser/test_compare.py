"""The Compare tab and the mode switch in Chromium, on a fake engine."""

import json
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.fakes import NAMED_SPEAKERS, FakeSpeechEngine, served

WITH_GRAPH = replace(NAMED_SPEAKERS, mode="CUDA graph", graph_unavailable="")

TIMEOUT_MS = 30_000


def opened(browser: Browser, url: str) -> Page:
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(url)
    expect(page.locator("#speak-button")).to_be_enabled(timeout=TIMEOUT_MS)
    return page


def test_a_comparison_ends_with_table_chart_and_files(browser: Browser, tmp_path: Path) -> None:
    engine = FakeSpeechEngine(capabilities_when_ready=WITH_GRAPH, rtf=0.01, ttfa_s=0.01, frames=10)
    with served(engine) as url:
        page = opened(browser, url)
        page.get_by_role("tab", name="Compare").click()
        page.locator("#compare-button").click()
        expect(page.locator("#compare-progress")).to_have_text("Done", timeout=TIMEOUT_MS)
        rows = page.locator("#compare-table")
        expect(rows).to_contain_text("Predictor a frame")
        expect(rows).to_contain_text("5.00x")
        expect(page.locator("#compare-chart canvas, #compare-chart svg").first).to_be_visible()
        with page.expect_download() as download:
            page.locator("#compare-json").click()
        saved = tmp_path / "saved.json"
        download.value.save_as(saved)
        assert len(json.loads(saved.read_text())["runs"]) == 10
        expect(page.locator("#compare-button")).to_be_enabled()
        page.close()


def test_stop_ends_a_comparison_within_two_seconds(browser: Browser) -> None:
    engine = FakeSpeechEngine(capabilities_when_ready=WITH_GRAPH, rtf=0.5, ttfa_s=0.1, frames=400)
    with served(engine) as url:
        page = opened(browser, url)
        page.get_by_role("tab", name="Compare").click()
        page.locator("#compare-button").click()
        expect(page.locator("#compare-stop")).to_be_enabled(timeout=TIMEOUT_MS)
        page.locator("#compare-stop").click()
        expect(page.locator("#compare-progress")).to_have_text("Stopped", timeout=2_000)
        assert not engine.accepted
        page.close()


def test_without_a_graph_both_are_disabled_and_say_why(browser: Browser) -> None:
    with served(FakeSpeechEngine(capabilities_when_ready=NAMED_SPEAKERS)) as url:
        page = opened(browser, url)
        page.get_by_text("Advanced", exact=True).click()
        expect(page.locator("#mode")).to_contain_text("there is no CUDA graph on the CPU")
        expect(page.locator("#mode input").first).to_be_disabled()
        page.get_by_role("tab", name="Compare").click()
        expect(page.locator("#compare-reason")).to_contain_text("no CUDA graph", timeout=TIMEOUT_MS)
        expect(page.locator("#compare-button")).to_be_disabled()
        page.close()


def test_the_switch_decides_how_a_run_is_made(browser: Browser) -> None:
    engine = FakeSpeechEngine(capabilities_when_ready=WITH_GRAPH, rtf=0.01, ttfa_s=0.01, frames=10)
    with served(engine) as url:
        page = opened(browser, url)
        page.get_by_text("Advanced", exact=True).click()
        page.locator("#mode").get_by_text("eager", exact=True).click()
        page.locator("#speak-button").click()
        expect(page.locator("#run-panel")).to_contain_text("eager", timeout=TIMEOUT_MS)
        assert engine.requests[-1].mode == "eager"
        page.close()
