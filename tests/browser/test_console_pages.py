"""The console's pages in Chromium: with and without script, on a phone, in the dark, by keyboard, on paper, and as axe
finds them."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import concilium as cc
from concilium.console.gateway import listen, make_server
from concilium.console.serving import make_console
from concilium.errors import StudyPending
from concilium.privacy.identity import Identity
from concilium.study.code_sharing import SharingStudy
from small_study import SEVERAL, SPLIT, lay_out, write_csv

AXE = Path(__file__).parents[2] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
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


RULES = """[study]
name = "rules"
method = "rulefit"
target = "death"
positive = 1
[rulefit]
trees = 10
leaves = 3
[evaluate]
holdout = 0.3
"""
SITES = SEVERAL[SEVERAL.index("[[site]]") :].replace(
    'name = "north"\n', 'name = "north"\npolicy = "north.toml"\n'
)
PLACES = (
    "/",
    MODEL,
    "/compare",
    "/models/rules/results",
    "/terms/rules/results?sort=importance&down=1",
    "/scientist",
    "/scientist/study/rules/study.toml",
    "/steward",
    "/steward/ledger/rules/north.ledger",
    "/steward/policy/rules/north.ledger",
    "/steward/sharing/codes/shared.html",
    "/steward/gateway/codes/gateway.log",
    "/nowhere",
)


def fill_folder(folder: Path) -> None:
    """Something for every page: a model with a dictionary, rules of hospitals with ledgers of which one waits for a
    person, a sharing to sign, and what a gateway decided."""
    for name in ("ward", "rules", "codes"):
        (folder / name).mkdir()
    study = SPLIT.replace('target = "death"', 'target = "death"\nquery = "age >= 18"') + DICTIONARY
    cc.Study.read(lay_out(folder / "ward", study)).run(folder / "ward" / "results")
    cc.Study.read(lay_out(folder / "rules", RULES + SITES.replace('policy = "north.toml"\n', ""))).run(
        folder / "rules" / "results"
    )
    house = Identity.create()
    house.save(folder / "rules" / "house.identity")
    (folder / "rules" / "north.toml").write_text(
        f'[houses]\nhere = "{house.fingerprint}"\n[agree]\nreleases = ["exact"]\n'
    )
    (folder / "rules" / "study.toml").write_text(RULES + SITES + '[house]\nidentity = "house.identity"\n')
    with pytest.raises(StudyPending):
        cc.Study.read(folder / "rules" / "study.toml").run(folder / "rules" / "waiting")
    rows = [{"patient": n % 40, "day": n // 40, "code": ("401", "042", "486")[n % 3]} for n in range(120)]
    write_csv(folder / "codes" / "codes.csv", rows)
    (folder / "codes" / "share.toml").write_text(
        '[study]\nname = "codes"\nmethod = "code-sharing"\n[code-sharing]\nepsilon = 0.1\nmax_events = 3\n'
        '[[site]]\nname = "codes"\ncodes = "codes.csv"\n'
    )
    SharingStudy.read(folder / "codes" / "share.toml").run(folder / "codes" / "shared.csv")
    (folder / "codes" / "gateway.log").write_text(
        "2026-01-01 10:00:00,1 passed bundle, rules that applied: E, F\n2026-01-01 10:00:01,1 refused hl7 by F\n"
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a console listens that one person may open."""
    folder = tmp_path_factory.mktemp("console")
    fill_folder(folder)
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
    complaints.clear()
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


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_wider_than_a_phone(pages: Any, place: str) -> None:
    page, _, base, _ = pages
    page.set_viewport_size({"width": 375, "height": 740})
    page.goto(base + place)
    if place == MODEL:
        page.get_by_role("button", name="Answer").click()
    wide = page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.set_viewport_size({"width": 1200, "height": 800})
    assert wide


@pytest.mark.skipif(
    not AXE.is_file(),
    reason="axe is not there: npm install --prefix build/axe axe-core@4.14.0 (as .ci/run does)",
)
@pytest.mark.parametrize("place", PLACES)
def test_axe_finds_nothing(pages: Any, place: str) -> None:
    """No rule of axe-core is broken, in light and in dark."""
    page, _, base, _ = pages
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(base + place)
        if place == MODEL:
            page.get_by_role("button", name="Answer").click()
            page.locator("#answered").wait_for()
        # By the debugger, as the page's own policy lets no other script in.
        page.context.new_cdp_session(page).send("Runtime.evaluate", {"expression": AXE.read_text()})
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        broken = [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found["violations"]]
        assert broken == [], scheme
    page.emulate_media(color_scheme="light")


def test_a_form_and_a_text_follow_each_other(pages: Any) -> None:
    from playwright.sync_api import expect

    page, _, base, complaints = pages
    complaints.clear()
    page.goto(f"{base}/scientist/study/rules/study.toml")
    with page.expect_response(lambda reply: reply.request.method == "POST"):
        page.get_by_label("trees", exact=True).fill("25")
    expect(page.locator("#text")).to_have_value(re.compile("trees = 25"), timeout=30_000)
    text = page.locator("#text").input_value()
    with page.expect_response(lambda reply: reply.request.method == "POST"):
        page.locator("#text").fill(text.replace("trees = 25", "trees = 30"))
    expect(page.locator('[name="f.rulefit.trees"]')).to_have_value("30", timeout=30_000)
    assert complaints == []


def test_a_run_is_followed_to_its_model(pages: Any) -> None:
    page, _, base, complaints = pages
    complaints.clear()
    page.goto(f"{base}/scientist/study/ward/study.toml")
    page.get_by_role("button", name="Save and run").click()
    page.get_by_role("link", name="small").wait_for()  # by itself, as the page is never opened again
    assert "finished" in page.locator("#result").inner_text()
    assert "tree.schema" in page.locator("#result").inner_text()
    assert complaints == []


def test_a_table_narrows_while_words_are_entered(pages: Any) -> None:
    page, plain, base, _ = pages
    for one in (page, plain):
        one.goto(f"{base}/compare")
        one.get_by_label("Find in this table").fill("rulefit")
        if one is plain:
            one.get_by_role("button", name="Show").click()
        one.get_by_text("1 of ").wait_for()


def test_on_paper_are_the_answer_and_its_pictures_alone(pages: Any) -> None:
    page, _, base, _ = pages
    page.goto(base + MODEL)
    page.get_by_label("Age at admission years", exact=True).first.fill("71")
    page.get_by_role("button", name="Answer").click()
    page.locator("#answered").wait_for()
    page.emulate_media(media="print")
    shown = [
        page.locator(name).first.is_visible() for name in (".answer", ".answer .paper", "header.bar", "form")
    ]
    page.emulate_media(media="screen")
    assert shown == [True, True, False, False]


def test_a_patient_is_described_by_keyboard_alone(pages: Any) -> None:
    page, _, base, _ = pages
    page.goto(base + MODEL)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "v.age":
            break
    page.keyboard.type("71")
    page.keyboard.press("Enter")
    page.locator("#answered").wait_for()
    assert "71" in page.locator(".entered").inner_text()


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


def test_text_stands_out(pages: Any) -> None:
    """The contrast of text that is on the page's own ground is 4.5 at least (WCAG 2.2, AA)."""
    page, _, base, _ = pages
    page.goto(base + MODEL)
    find_least = """() => {
        const read = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((one) => {
          const part = one / 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
        const light = (text) => { const [r, g, b] = read(text); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const ground = light(getComputedStyle(document.body).backgroundColor);
        const texts = [...document.querySelectorAll("h1, h2, p, dt, dd, label, summary, a, .help, footer")];
        return Math.min(...texts.map((one) => { const ink = light(getComputedStyle(one).color);
          return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05); }));
        }"""
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(find_least) >= 4.5, scheme
