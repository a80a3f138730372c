"""The console's pages in Chromium: with and without script, on a phone, in the dark, by keyboard."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import concilium as cc
from concilium.console.gateway import listen, make_server
from concilium.console.serving import make_console
from small_study import SPLIT, lay_out

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"
)

OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
MODEL = "/models/ward/results"
DICTIONARY = (
    '[dictionary.age]\nlabel = "Age at admission"\ntype = "number"\nunit = "years"\nrange = [0, 110]\n'
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a console listens that one person may open."""
    folder = tmp_path_factory.mktemp("console")
    (folder / "ward").mkdir()
    study = SPLIT.replace('target = "death"', 'target = "death"\nquery = "age >= 18"') + DICTIONARY
    cc.Study.read(lay_out(folder / "ward", study)).run(folder / "ward" / "results")
    app, access = make_console(folder, host="127.0.0.1")
    server = make_server(app, app.connections, "the console")
    with listen("127.0.0.1", 0, "--port") as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/login?token={access.token}"
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture(scope="module")
def pages(address: str) -> Iterator[tuple[Any, Any, str, list[str]]]:
    """A page with script and one without, of the same session; where they are; and what the browser complains of."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS.split())
        context = browser.new_context()
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        plain = browser.new_context(
            java_script_enabled=False, storage_state=context.storage_state()
        ).new_page()
        yield page, plain, address.partition("/login")[0], complaints
        browser.close()


def test_an_answer_follows_a_slider(pages: Any) -> None:
    page, _, base, complaints = pages
    page.goto(base + MODEL)
    page.get_by_label("Age at admission years", exact=True).first.fill("71")
    page.get_by_role("button", name="Answer").click()
    first = page.locator("#answered").inner_text()
    page.locator("input[type=range]").fill("30")
    page.locator(".compare").wait_for()
    assert page.locator("#answered").inner_text() != first
    assert "71 → 30" in page.locator(".compare").inner_text()
    assert "30" not in page.url
    assert complaints == []


def test_it_works_without_script(pages: Any) -> None:
    _, page, base, _ = pages
    page.goto(base + MODEL)
    page.get_by_label("Age at admission years").fill("71")
    page.get_by_role("button", name="Answer").click()
    assert "death" in page.locator("#answered").inner_text()
    page.get_by_label("Age at admission years").fill("30")
    page.get_by_role("button", name="Answer again").click()
    assert "71 → 30" in page.locator(".compare").inner_text()


def test_nothing_is_wider_than_a_phone(pages: Any) -> None:
    page, _, base, _ = pages
    page.set_viewport_size({"width": 360, "height": 740})
    for place in ("/", MODEL):
        page.goto(base + place)
        if place == MODEL:
            page.get_by_role("button", name="Answer").click()
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.set_viewport_size({"width": 1200, "height": 800})


def test_every_field_has_a_name_and_the_page_its_landmarks(pages: Any) -> None:
    page, _, base, _ = pages
    page.goto(base + MODEL)
    assert page.locator("main, header nav, footer").count() == 3
    unnamed = (
        "[...document.querySelectorAll('input:not([type=hidden]), select')].filter(one => !one.labels.length"
    )
    assert page.evaluate(f"{unnamed} && !one.getAttribute('aria-label')).length") == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(one => one.tagName)")
    assert levels.count("H1") == 1
    assert levels[0] == "H1"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(pages: Any, scheme: str) -> None:
    """The contrast of text that is on the page's own ground is 4.5 at least (WCAG 2.2, AA)."""
    page, _, base, _ = pages
    page.emulate_media(color_scheme=scheme)
    page.goto(base + MODEL)
    least = page.evaluate(
        """() => {
        const read = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((one) => {
          const part = one / 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
        const light = (text) => { const [r, g, b] = read(text); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const ground = light(getComputedStyle(document.body).backgroundColor);
        const texts = [...document.querySelectorAll("h1, h2, p, dt, dd, label, summary, a, .help, footer")];
        return Math.min(...texts.map((one) => { const ink = light(getComputedStyle(one).color);
          return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05); }));
        }"""
    )
    page.emulate_media(color_scheme="light")
    assert least >= 4.5
