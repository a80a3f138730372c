"""The steward's pages: what waits, two who decide at once, a long ledger, a policy that does not parse."""

from __future__ import annotations

import logging
import random
import re
import shutil
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from test_console import find_token, log_in, open_console, read_trail, users  # noqa: F401

import concilium as cc
from concilium import policy as policy_language
from concilium.console.gateway import Gateway
from concilium.console.gateway_log import read_decisions
from concilium.console.ledger_view import _draw_spending, _say_forecast
from concilium.console.signed_sharing import look_at_sharing, sign_sharing
from concilium.consult.consent import describe_study, list_studies
from concilium.errors import StudyPending
from concilium.ledger.budgets import Balance
from concilium.privacy.identity import Identity
from concilium.study.code_sharing import SharingStudy
from small_study import HOSPITALS, make_patients, write_csv

STUDY = """
[study]
name = "burn mortality"
purpose = "Who dies of burns, so that <b>beds</b> can be planned."
method = "tree"
target = "death"
[privacy]
release = "private"
epsilon = 1
[values]
death = [0, 1]
sex = ["f", "m"]
[bins]
age = [40, 60]
[tree]
max_depth = 2
[house]
identity = "network.identity"
days = 30
"""
NORTH = "north.ledger"


@pytest.fixture(scope="module")
def proposed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a study waits for one hospital, and the others have agreed by their policies."""
    folder = tmp_path_factory.mktemp("proposed")
    rows = [{name: row[name] for name in ("hospital", "age", "sex", "death")} for row in make_patients()]
    house, text = Identity.create(), STUDY
    house.save(folder / "network.identity")
    for name in HOSPITALS:
        write_csv(folder / f"{name}.csv", [row for row in rows if row["hospital"] == name])
        price = "1/100" if name == "north" else "1/10"
        (folder / f"{name}.toml").write_text(
            f'[houses]\nnetwork = "{house.fingerprint}"\n[budget]\ntotal = "1/2"\n[release]\nmodes = ["private"]\n'
            f'[agree]\nreleases = ["private"]\nprice_per_study = "{price}"\n'
        )
        text += f'[[site]]\nname = "{name}"\nrecords = "{name}.csv"\none_row_per_patient = true\n'
        text += f'policy = "{name}.toml"\nledger = "{name}.ledger"\n'
    (folder / "study.toml").write_text(text)
    with pytest.raises(StudyPending):
        cc.Study.read(folder / "study.toml").run(folder / "results")
    return folder


@pytest.fixture
def folder(proposed: Path, tmp_path: Path) -> Path:
    """The same, to decide in."""
    return Path(shutil.copytree(proposed, tmp_path / "proposed"))


def find_waiting(folder: Path) -> str:
    with cc.Ledger.open_readonly(folder / NORTH) as ledger:
        (study,) = list_studies(ledger)
    return f"/steward/study/{study.id}/{NORTH}"


def decide(browser: TestClient, place: str, decision: str, **fields: str):  # type: ignore[no-untyped-def]
    token = find_token(browser.get(place).text)
    return browser.post(place, data={"csrf": token, "decision": decision, **fields})


def test_the_page_is_the_consent_page(proposed: Path) -> None:
    page = unescape(open_console(proposed).get(find_waiting(proposed)).text)
    with cc.Ledger.open_readonly(proposed / NORTH) as ledger:
        (study,) = list_studies(ledger)
        sections = describe_study(study, ledger, cc.Policy.read(proposed / "north.toml"))
    assert {"Purpose", "Worst case", "Price"} <= {section.label for section in sections}
    for section in sections:
        if section.label != "Who asks":  # which says what the policy pins
            assert all(paragraph in page for paragraph in section.paragraphs), section.label
    assert "<b>beds</b>" not in open_console(proposed).get(find_waiting(proposed)).text


def test_what_waits_comes_first(proposed: Path) -> None:
    page = open_console(proposed).get("/steward").text
    assert page.count('class="status waiting"') == 1
    assert page.count('class="status agreed"') == 2


def test_a_decision_is_signed_and_entered(folder: Path, users: Path) -> None:  # noqa: F811
    place = find_waiting(folder)
    reply = decide(
        log_in(folder, users, "steward"), place, "agree", why="ethics vote 12/26", who="somebody else"
    )
    assert reply.status_code == 200
    with cc.Ledger.open_readonly(folder / NORTH) as ledger:
        public = Identity.load(folder / f"{NORTH}.identity").public
        (study,) = list_studies(ledger, public=public)
        assert (study.status, study.record.who, study.record.why) == (
            "agreed",
            "steward",
            "ethics vote 12/26",
        )
        assert not study.forged
    assert "Agreed by steward" in reply.text
    assert [line["outcome"] for line in read_trail(folder) if line["action"] == "agree"] == ["entered"]


def test_of_two_who_decide_at_once_one_is_told(folder: Path) -> None:
    place = find_waiting(folder)
    browser = open_console(folder)
    token = find_token(browser.get(place).text)
    first, second = (
        browser.post(place, data={"csrf": token, "decision": "agree", "who": who, "why": "vote"})
        for who in ("Dr. Meyer", "Dr. Weiss")
    )
    assert first.status_code == 200
    assert second.status_code == 409
    assert "already by Dr. Meyer: vote" in unescape(second.text)
    assert str(folder) not in second.text
    assert decide(browser, place, "refuse", who="A", why="B").status_code in (409, 422)
    assert decide(browser, place, "end", who="Dr. Meyer", why="consent withdrawn").status_code == 200
    with cc.Ledger.open_readonly(folder / NORTH) as ledger:
        assert list_studies(ledger)[0].status == "ended"


@pytest.mark.parametrize(
    ("decision", "fields"),
    [("agree", {"who": "A", "why": " "}), ("agree", {"who": "", "why": "x"}), ("burn", {})],
)
def test_a_decision_without_name_reason_or_kind_is_none(
    proposed: Path, decision: str, fields: dict[str, str]
) -> None:
    reply = decide(open_console(proposed), find_waiting(proposed), decision, **fields)
    assert reply.status_code in (400, 422)
    with cc.Ledger.open_readonly(proposed / NORTH) as ledger:
        assert list_studies(ledger)[0].status == "waiting"


def test_without_the_identity_nothing_is_decided(folder: Path) -> None:
    (folder / f"{NORTH}.identity").unlink()
    reply = decide(open_console(folder), find_waiting(folder), "agree", who="A", why="B")
    assert reply.status_code == 422
    assert "identity is not beside its ledger" in reply.text


def test_stewards_pages_are_for_stewards(proposed: Path, users: Path) -> None:  # noqa: F811
    for name in ("viewer", "clinician", "scientist"):
        browser = log_in(proposed, users, name)
        for place in (
            "/steward",
            find_waiting(proposed),
            f"/steward/ledger/{NORTH}",
            f"/steward/policy/{NORTH}",
        ):
            assert browser.get(place).status_code == 403
        assert ">Studies</a>" not in browser.get("/").text


def test_a_policy_that_does_not_parse_is_a_sentence(folder: Path) -> None:
    (folder / "north.toml").write_text("[release]\nmodes = [")
    browser = open_console(folder)
    page = browser.get(f"/steward/policy/{NORTH}")
    assert page.status_code == 200
    assert "This policy does not parse" in page.text
    assert str(folder) not in page.text
    assert "The policy cannot be read" in browser.get(find_waiting(folder)).text


def test_a_ledger_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "north.ledger").write_bytes(b"no ledger")
    browser = open_console(tmp_path)
    assert browser.get("/steward").status_code == 200
    assert browser.get(f"/steward/ledger/{NORTH}").status_code == 422
    assert str(tmp_path) not in browser.get("/steward").text


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger of some hundred charges."""
    folder = tmp_path_factory.mktemp("spent")
    with cc.Ledger(folder / NORTH, budget=1) as ledger:
        for number in range(250):
            ledger.charge(
                f"q{number}",
                "d",
                study=f"s{number % 3}",
                kind="k",
                mode="private",
                cost=Fraction(1, 1000),
                numbers=3,
                seal=lambda _: b"",
            )
    return folder


def test_a_ledger_is_paged_newest_first(spent: Path) -> None:
    browser, seen = open_console(spent), []
    place = f"/steward/ledger/{NORTH}"
    with cc.Ledger.open_readonly(spent / NORTH) as ledger:
        sequences = [entry.sequence for entry in ledger.entries()]
        pages = [ledger.page(), ledger.page(151), ledger.page(51), ledger.page(1)]
        assert [entry for page in pages for entry in page] == ledger.entries()[::-1]
        spending = ledger.spending(7)
        assert spending[-1][1] == ledger.spent() == Fraction(250, 1000)
        assert [amount for _, amount in spending] == sorted(amount for _, amount in spending)
        assert len(spending) == 8
    for before in ("", "?before=151", "?before=51"):
        page = browser.get(place + before).text
        seen += [number for number in sequences if f'<th scope="row">{number}</th>' in page]
    assert sorted(seen) == sequences
    reply = browser.get(f"{place}?before=x")
    assert (reply.status_code, "This request cannot be read." in reply.text) == (422, True)


def make_balance(spent: Fraction, budget: Fraction | None) -> Balance:
    return Balance("rho", Fraction(1, 10**6), spent, budget, "steward", "2026-11")


def test_the_forecast_goes_on_at_the_pace_of_the_last_days() -> None:
    now = datetime(2026, 11, 1, tzinfo=UTC)
    spending = [
        (now - timedelta(days=100), Fraction(1, 10)),
        (now - timedelta(days=40), Fraction(3, 10)),
        (now - timedelta(days=10), Fraction(5, 10)),
    ]
    # 0.2 in 30 days, so that 0.4 lasts 60 days.
    balance = make_balance(Fraction(1, 2), Fraction(9, 10))
    assert _say_forecast(spending, balance, now).endswith("is used up around 2026-12-31.")
    assert "Nothing was spent" in _say_forecast(spending[:2], make_balance(Fraction(3, 10), Fraction(1)), now)
    assert "no budget" in _say_forecast(spending, make_balance(Fraction(1, 2), None), now)
    assert "used up: no private" in _say_forecast(spending, make_balance(Fraction(1), Fraction(1)), now)
    assert "more than ten years" in _say_forecast(spending, make_balance(Fraction(1, 2), Fraction(1000)), now)


def test_the_forecast_is_drawn_until_the_budget_is_reached() -> None:
    now = datetime.now(UTC)
    spending = [(now - timedelta(days=days), Fraction(100 - days, 100)) for days in (90, 60, 30, 1)]
    for budget, reaches in ((Fraction(11, 10), True), (Fraction(5), False)):
        picture = _draw_spending(spending, make_balance(Fraction(99, 100), budget))
        ahead = re.search(r'y1="([\d.]+)" x2="600" y2="([\d.]+)" [^>]*stroke-dasharray="2 4"', picture)
        limit = re.search(r'y1="([\d.]+)" y2="[\d.]+"[^>]*stroke-dasharray="6 4"', picture)
        assert ahead is not None
        assert limit is not None
        assert float(ahead[1]) > float(ahead[2])
        assert (float(ahead[2]) == pytest.approx(float(limit[1]), abs=0.2)) == reaches


def test_the_picture_of_one_charge_can_be_drawn() -> None:
    now = datetime.now(UTC)
    picture = _draw_spending([(now, Fraction(1, 3))], make_balance(Fraction(1, 3), None))
    assert "nan" not in picture


def open_policy(browser: TestClient) -> dict[str, str]:
    page = browser.get(f"/steward/policy/{NORTH}").text
    text, digest = re.search(r'id="text"[^>]*>\n(.*?)</textarea>', page, re.DOTALL), DIGEST.search(page)
    assert text is not None
    assert digest is not None
    return {"csrf": find_token(page), "text": unescape(text[1]), "digest": digest[1]}


DIGEST = re.compile(r'name="digest" value="([^"]*)"')
GRAPH = '[constraints]\ntext = """graph E { node x + eliminate x.name; }"""\n'


def post_policy(browser: TestClient, fields: dict[str, str], **more: str):  # type: ignore[no-untyped-def]
    return browser.post(f"/steward/policy/{NORTH}", data={**fields, **more})


def test_a_policy_is_tried_on_a_record_before_it_is_saved(folder: Path) -> None:
    browser = open_console(folder)
    fields = open_policy(browser)
    before = (folder / "north.toml").read_text()
    assert fields["text"] == before
    record = '{"name": "Jane Roe", "age": 71}'
    page = post_policy(browser, fields, text=before + GRAPH, record=record, do="try").text
    rows = re.findall(r"<tr[^>]*><td><code>(.*?)</code></td><td><code>(.*?)</code></td></tr>", unescape(page))
    assert ('  "name": "Jane Roe",', "") in [(left, right) for left, right in rows]
    assert '"age": 71' in unescape(page)
    assert (folder / "north.toml").read_text() == before
    assert "Saved as" in post_policy(browser, fields, text=before + GRAPH, do="save").text
    assert (folder / "north.toml").read_text() == before + GRAPH
    assert all("Jane" not in str(line) for line in read_trail(folder))


def test_without_graphs_a_policy_is_tried_as_a_site_knows_records(folder: Path) -> None:
    browser = open_console(folder)
    fields = open_policy(browser)
    withholding = fields["text"].replace("[release]\n", '[release]\nwithhold = ["name"]\n')
    page = unescape(
        post_policy(browser, fields, text=withholding, record='[{"name": "Jane", "age": 71}]', do="try").text
    )
    assert page.count('"name": "Jane"') == 2  # as entered, and before
    assert page.count('"age": 71') == 3


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("no json", "is not JSON"),
        ("[" * 50_000, "It was not tried"),
        ('{"age": 1e999}', "is not JSON"),
        ("MSH|nonsense", "It was not tried"),
    ],
)
def test_a_record_that_is_none_is_a_sentence(folder: Path, record: str, said: str) -> None:
    browser = open_console(folder)
    fields = open_policy(browser)
    reply = post_policy(browser, fields, text=fields["text"] + GRAPH, record=record, do="try")
    assert reply.status_code == 422
    assert said in unescape(reply.text)


def test_a_policy_that_is_wrong_or_changed_meanwhile_is_not_saved(folder: Path) -> None:
    browser = open_console(folder)
    fields = open_policy(browser)
    assert post_policy(browser, fields, text="[release]\nmodes = [", do="save").status_code == 422
    theirs = fields["text"] + "# of a colleague\n"
    (folder / "north.toml").write_text(theirs)
    reply = post_policy(browser, fields, text=fields["text"] + GRAPH, do="save")
    assert reply.status_code == 409
    assert "eliminate x.name" in reply.text
    assert (folder / "north.toml").read_text() == theirs


def test_others_name_no_file_outside_of_the_folder(folder: Path, users: Path) -> None:  # noqa: F811
    browser = log_in(folder, users, "steward")
    fields = open_policy(browser)
    for place in ("/etc/passwd", "../outside"):
        text = f'{fields["text"]}[constraints]\nfile = "{place}"\n'
        for do in ("try", "save"):
            reply = post_policy(browser, fields, text=text, do=do)
            assert reply.status_code == 422
            assert "is not in the folder of the console" in unescape(reply.text)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shared codes and the page to sign."""
    folder = tmp_path_factory.mktemp("sharing")
    draw = random.Random(3)
    rows = [
        {"patient": f"p{n % 60}", "day": n // 60, "code": draw.choice(["401", "250", "042", "295", "486"])}
        for n in range(180)
    ]
    write_csv(folder / "codes.csv", rows)
    (folder / "policy.toml").write_text('[budget]\ncurrency = "epsilon"\ntotal = "10"\n')
    (folder / "share.toml").write_text(
        '[study]\nname = "codes for a registry"\nmethod = "code-sharing"\n[code-sharing]\nepsilon = 1\n'
        'max_events = 5\n[[site]]\nname = "codes"\ncodes = "codes.csv"\npolicy = "policy.toml"\n'
    )
    SharingStudy.read(folder / "share.toml").run(folder / "shared.csv")
    return folder


def test_a_sharing_is_signed_by_the_hospital(sharing: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharing, tmp_path / "sharing"))
    browser, place = open_console(folder), "/steward/sharing/shared.html"
    assert place in browser.get("/steward").text
    page = browser.get(place)
    assert "Nobody has signed yet" in page.text
    assert "frame-src 'self'" in page.headers["content-security-policy"]
    inner = browser.get("/steward/sharing-page/shared.html")
    assert "sandbox" in inner.headers["content-security-policy"]
    assert "<svg" in inner.text  # the curves of loss against attack
    token = find_token(page.text)
    fields = {"csrf": token, "decision": "released", "who": "A. Meyer", "why": "ethics vote 12/26"}
    assert browser.post(place, data={**fields, "why": ""}).status_code == 422
    assert browser.post(place, data={**fields, "decision": "sold"}).status_code == 422
    signed = browser.post(place, data=fields).text
    assert "A. Meyer" in signed
    assert "This does not count" not in signed
    view = look_at_sharing(folder / "shared.html", {"codes": folder / "codes.csv.ledger"})
    assert view.signed[0][0].holds(Identity.load(folder / "codes.csv.ledger.identity").public)
    (folder / "shared.csv").write_text("patient,day,code\n")
    changed = browser.get(place).text
    assert "This does not count" in changed
    assert "is not as it was written" in changed
    assert browser.post(place, data=fields).status_code == 422


def test_a_forged_signature_does_not_count(sharing: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sharing, tmp_path / "sharing"))
    sign_sharing(
        look_at_sharing(folder / "shared.html", {"codes": folder / "codes.csv.ledger"}), "withheld", "A", "no"
    )
    path = folder / "shared.signed.json"
    path.write_text(path.read_text().replace("withheld", "released"))
    page = open_console(folder).get("/steward/sharing/shared.html").text
    assert "This does not count" in page


def test_decisions_of_a_gateway_are_counted_from_its_log(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "gateway.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("concilium.gateway")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    gateway = Gateway(policy_language.parse("graph E { node x + eliminate x.name; }"))
    for message in (b'{"nodes": [{"name": "Jane", "age": 71}]}', b'{"nodes": []}', b"none"):
        gateway.handle(message)
    logger.removeHandler(handler)
    logger.setLevel(level)
    handler.close()
    seen = read_decisions(tmp_path / "gateway.log")
    assert seen.outcomes == {"passed": 2, "error": 1}
    assert seen.rules == {"E": 1}
    (tmp_path / "other.log").write_text("2026-01-01 10:00:00 something else\n")
    browser = open_console(tmp_path)
    assert "gateway.log" in browser.get("/steward").text
    assert "other.log" not in browser.get("/steward").text
    page = browser.get("/steward/gateway/gateway.log").text
    assert "could not be read" in page
    assert "Jane" not in page
