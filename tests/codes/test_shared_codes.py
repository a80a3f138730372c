"""Codes leave a hospital through its gate: as agreed, charged before, drawn once, and no more than the terms say."""

from __future__ import annotations

import logging
import math
import random
from fractions import Fraction
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import concilium as cc
from agreed import Asker
from concilium.codes.agreed_sharing import NOT_FOR_CARE, AgreedSharing
from concilium.codes.block_response import UNREADABLE, BlockResponse
from concilium.codes.code_design import CodeDesign, open_design
from concilium.codes.shared_codes import AskSharedCodes, CodesReply, _write_codes
from concilium.consult.consent import decide_on_study, find_study, write_page
from concilium.errors import (
    HouseError,
    LedgerError,
    MessageError,
    StudyError,
    StudyPending,
)
from concilium.policy.policy import Agree
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.identity import Identity
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.messages import Answer, decode, open_reply
from concilium.protocol.questions import Randomised
from concilium.protocol.sums import pack
from concilium.registry import KINDS, METHODS, load

SENSITIVE = ["042", "303", "304", "305"]
CLEAR = ["250.00", "401.9", "428", "486", "427.31"]


def make_patients(count, seed=1):
    dice = random.Random(seed)
    patients = []
    for _ in range(count):
        codes = [dice.choice(CLEAR) for _ in range(dice.randrange(4))]
        codes += ["303.9", "571.2"] if dice.random() < 0.1 else []
        codes += ["042"] if dice.random() < 0.05 else []
        patients.append([(float(100 + 3 * day), code) for day, code in enumerate(codes)])
    return patients


AUXILIARY = make_patients(1500)
PATIENTS = make_patients(120, 2)
IDS = [f"patient {number}" for number in range(len(PATIENTS))]


@pytest.fixture(scope="module")
def fitted():
    return cc.CodeSharing(sensitive=SENSITIVE, epsilon="0.1", max_events=5).fit(AUXILIARY)


def open_site(patients=PATIENTS, ids=IDS, policy=None, **options):
    return cc.Site("north", cc.Sequences(patients, ids), policy, **options)


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    with zero_noise():
        yield


def test_codes_of_a_site_are_charged_for_everyone_before_they_leave(fitted):
    site = open_site()
    shared = fitted.share(site)
    assert len(shared) == len(PATIENTS)
    assert len(shared.codes) == sum(min(len(history), 5) for history in PATIENTS)
    (entry,) = [one for one in site.ledger.entries() if one.question]
    assert (entry.kind, entry.mode, entry.numbers) == ("codes.shared", "shared", len(shared.codes))
    assert entry.cost == rho_from_pure(Fraction(5, 10)) == site.ledger.spent()
    # What is in the clear no budget bounds, and the ledger says so.
    assert entry.unbounded
    assert site.ledger.epsilon() == float("inf")
    assert site.ledger.unbounded_numbers() == len(shared.codes)
    assert site.ledger.verify() > 0
    assert fitted.card_.warnings == [NOT_FOR_CARE]
    assert fitted.card_.releases[0].cost == str(entry.cost)


def test_a_ledger_of_epsilon_is_charged_max_events_times_epsilon(fitted):
    site = open_site(policy=cc.Policy(budget=cc.Budget("1", currency="epsilon")))
    fitted.share(site)
    assert site.ledger.spent() == Fraction(1, 2) == fitted.price


def test_histories_at_hand_charge_nothing_and_the_sharing_knows_it(fitted):
    fitted.share(PATIENTS)
    assert fitted.card_ is None
    assert "NO ledger is charged" in fitted.share.__doc__


def test_patients_leave_under_numbers_that_only_the_hospital_can_undo(fitted, no_noise):
    site = open_site()
    sharing = fitted.refit(max_events=3, dates="kept")
    shared = sharing.share(site)
    assert list(shared.ids) == list(range(1, len(PATIENTS) + 1))
    names = site.name_patients(sharing.card_.study)
    assert sorted(names) == sorted(IDS)
    assert names != IDS
    taxonomy = sharing.taxonomy
    for name, history in zip(names, shared, strict=True):
        recorded = PATIENTS[IDS.index(name)][-3:]
        assert history == [(time, taxonomy.normalise(code)) for time, code in recorded]
    other = fitted.refit(max_events=3)
    other.share(site)
    assert site.name_patients(other.card_.study) != names


def test_times_leave_as_days_since_the_first_unless_the_terms_keep_dates(fitted):
    shared = fitted.share(open_site())
    assert {history[0][0] for history in shared if history} == {0.0}
    assert all(later[0] - one[0] == 3.0 for history in shared for one, later in pairwise(history))
    assert shared.clock == "days"
    dated = cc.Sequences([[("2020-01-03", "250"), ("2020-02-01", "042")], []], ["a", "b"])
    site = cc.Site("north", dated, cc.Policy(minimum_patients=0))
    assert fitted.refit(dates="kept").share(site).clock == "dates"
    assert [len(history) for history in fitted.share(site)] in ([2, 0], [0, 2])


def test_a_hospital_that_spent_its_budget_on_models_shares_no_codes(tmp_path, fitted):
    rows = [{"id": name, "age": 40 + place % 40, "y": "ny"[place % 3 == 0]} for place, name in enumerate(IDS)]
    schema = {"id": "code", "age": "number", "y": "code"}
    table = cc.Records.from_rows(rows, schema=schema)
    policy = cc.Policy(budget=cc.Budget("0.25"))
    ledger = tmp_path / "north.ledger"

    def learn(epsilon):
        sites = [
            cc.Site("north", table, policy, ledger),
            *(cc.Site(name, table, cc.Policy()) for name in ("a", "b")),
        ]
        model = cc.NaiveBayes(
            "y", release="private", epsilon=epsilon, bins={"age": [60]}, values={"y": ["n", "y"]}
        )
        model.fit(cc.House(sites))
        spent = sites[0].ledger.spent()
        sites[0].ledger.close()
        return spent

    whole = cc.Patients(table=table, codes=cc.Sequences(PATIENTS, IDS), by="id")

    def share():
        site = cc.Site("north", whole, policy, ledger)
        try:
            return fitted.share(site)
        finally:
            site.ledger.close()

    price = rho_from_pure(fitted.price)
    spent = learn("1")
    assert 0 < spent < Fraction(1, 4) - price
    assert len(share()) == len(PATIENTS)
    # The second does not fit beside the first and the model, nor does a model beside both.
    with pytest.raises(HouseError, match=r"no site answered: north: this would cost rho = about 0\.122"):
        share()
    with pytest.raises(HouseError, match="north: this would cost rho"):
        learn("3")
    with cc.Ledger.open_readonly(ledger) as book:
        assert book.spent() == spent + price
        assert {entry.mode for entry in book.entries()} >= {"private", "shared"}


def test_what_does_not_fit_is_refused_before_anything_is_drawn(fitted, monkeypatch):
    site = open_site()
    monkeypatch.setattr(AskSharedCodes, "compute", lambda *_: pytest.fail("was drawn"))
    with pytest.raises(HouseError, match=r"would cost rho = .*100, but 1 is left"):
        fitted.refit(epsilon=1, max_events=100).share(site)
    assert site.ledger.spent() == 0
    assert [note.rule for note in site.ledger.refusals()] == ["budget"]


def ask_by_hand(site, sharing, **changes):
    agreed = sharing.propose()
    asker = Asker(
        [site],
        method="code-sharing",
        release="shared",
        parameters=agreed.get_params(),
        **{"price": str(agreed.plan().total), "nonce": "a nonce of ours", **changes},
    )
    return asker, AskSharedCodes(query="", target="", design=agreed.design)


def test_a_repeated_question_gets_the_same_draw_for_nothing_and_another_draw_none(fitted):
    site = open_site()
    asker, question = ask_by_hand(site, fitted)
    first = asker.ask(site, asker.wrap(question))
    spent = site.ledger.spent()
    assert isinstance(open_reply(first), Answer)
    assert asker.ask(site, asker.wrap(question)) == first
    again = open_reply(asker.ask(site, asker.wrap(question, name="under another id")))
    assert (again.rule, site.ledger.spent()) == ("agreed", spent)
    # Also where the terms would pay for two.
    dear, question = ask_by_hand(site, fitted, price=str(3 * spent), nonce="a dear study")
    assert isinstance(open_reply(dear.ask(site, dear.wrap(question, name="question-2"))), Answer)
    assert "once" in open_reply(dear.ask(site, dear.wrap(question, name="question-3"))).reason
    assert site.ledger.spent() == 2 * spent


def test_to_randomise_twice_is_to_pay_twice_and_the_draws_differ(fitted):
    site = open_site()
    one, other = fitted.share(site), fitted.share(site)
    assert site.ledger.spent() == 2 * rho_from_pure(Fraction(1, 2))
    assert one.digest != other.digest


def test_a_study_asks_by_its_own_design_and_of_its_own_patients(fitted):
    site = open_site(policy=cc.Policy(budget=cc.Budget("unlimited")))
    asker, question = ask_by_hand(site, fitted, price="1000")
    for field, value in {
        "epsilon": "5",
        "max_events": 4,
        "block_size": 1,
        "hidden": (),
        "show_hidden": False,
        "dates": "kept",
    }.items():
        design = msgspec.structs.replace(question.design, **{field: value})
        reply = asker.put(site, msgspec.structs.replace(question, design=design))
        assert (reply.rule, "not that of the study" in reply.reason) == ("agreed", True), field
    reply = asker.put(site, msgspec.structs.replace(question, query="patient = 'here'"))
    assert reply.rule == "agreed"
    assert site.ledger.spent() == 0


def test_no_policy_agrees_to_share_by_itself_that_does_not_name_it(fitted):
    assert "code-sharing" not in METHODS
    site = open_site(policy=cc.Policy(agree=Agree()))
    with pytest.raises(StudyPending):
        fitted.share(site)
    (waiting,) = site.ledger.studies.list()
    text = " ".join(write_page(find_study(site.ledger, waiting.id), site.ledger, site.policy).split())
    assert "sensitive = 042, 303, 304, 305: " in text
    assert "Treat all codes that are not protected as handed over" in text
    assert "one at most 1.11 times as well as the other (epsilon = 0.1)" in text
    assert "Of all 5 entries of a patient together the bound is epsilon = 0.5." in text
    assert "codes.shared; each entry randomised by itself, rho 0.123" in text
    assert "it agrees to no 'code-sharing' released as 'shared' by itself" in text
    for incomplete in (Agree(releases=("shared",)), Agree(methods=("code-sharing",))):
        with pytest.raises(StudyPending):
            fitted.share(open_site(policy=cc.Policy(agree=incomplete)))
    named = open_site(
        policy=cc.Policy(
            agree=Agree(releases=("shared",), methods=("code-sharing",), sensitive=("042", "303.9"))
        )
    )
    assert len(fitted.share(named)) == len(PATIENTS)


@pytest.mark.parametrize(
    ("sensitive", "why"),
    [
        (None, "that does not hide 282"),  # of 38 U.S.C. section 7332
        (("042", "786"), "that does not hide 786"),
        (("E11",), "does not say which codes of this classification must be hidden"),
    ],
)
def test_a_house_that_leaves_in_the_clear_what_the_policy_wants_hidden_waits(fitted, sensitive, why):
    policy = cc.Policy(agree=Agree(releases=("shared",), methods=("code-sharing",), sensitive=sensitive))
    site = open_site(policy=policy)
    with pytest.raises(StudyPending) as pending:
        fitted.share(site)
    study = find_study(site.ledger, pending.value.study, policy)
    assert why in " ".join(write_page(study, site.ledger, policy).split())
    assert site.ledger.spent() == 0


def test_what_hides_all_that_the_law_names_needs_no_person_where_sharing_is_named():
    site = open_site(policy=cc.Policy(agree=Agree(releases=("shared",), methods=("code-sharing",))))
    law = cc.CodeSharing(epsilon="0.1", max_events=5).fit(AUXILIARY)
    assert len(law.share(site)) == len(PATIENTS)


def test_a_person_agrees_and_the_same_study_goes_on(fitted, tmp_path):
    site = open_site(policy=cc.Policy(agree=Agree()))
    house = cc.House([site], journal=tmp_path / "journal", purpose="readmission")
    with pytest.raises(StudyPending) as pending:
        fitted.share(house)
    study = pending.value.study
    decide_on_study(site.ledger, study, "agreed", "Dr. Meyer", "vote of 3 May", site.identity)
    shared = fitted.share(cc.House([site], journal=tmp_path / "journal", purpose="readmission"))["north"]
    assert fitted.card_.study == study
    again = fitted.share(cc.House([site], journal=tmp_path / "journal", purpose="readmission"))["north"]
    assert again.digest == shared.digest
    assert site.ledger.spent() == rho_from_pure(Fraction(1, 2))


@pytest.mark.parametrize("currency", ["epsilon", "rho"])
def test_the_page_says_what_is_left_of_a_budget_in_either_currency(fitted, currency):
    policy = cc.Policy(agree=Agree(), budget=cc.Budget("2", currency=currency))
    site = open_site(policy=policy)
    with pytest.raises(StudyPending) as pending:
        fitted.share(site)
    text = " ".join(write_page(find_study(site.ledger, pending.value.study), site.ledger).split())
    left = {"epsilon": "epsilon 2 is left now, and epsilon 1.5 after it", "rho": "rho 2 is left now"}
    assert left[currency] in text
    assert "cannot be charged" not in text


def test_a_mode_or_kind_that_policy_closes_is_refused(fitted):
    for policy, words in (
        (cc.Policy(modes=("exact", "private")), "nothing is released as 'shared' here"),
        (cc.Policy(kinds=("tree.schema",)), "questions of kind 'codes.shared' are not answered here"),
        (cc.Policy(minimum_patients=1000), "too few patients match"),
        (cc.Policy(numbers_per_patient=0.5), "numbers were asked for"),
    ):
        site = open_site(policy=policy)
        with pytest.raises(HouseError, match=words):
            fitted.share(site)
        assert site.ledger.spent() == 0
    without = cc.Site("north", cc.Records.from_rows([{"y": "n"}] * 20))
    with pytest.raises(HouseError, match="this hospital holds no codes of its patients"):
        fitted.share(without)


def test_whom_a_policy_leaves_out_is_not_shared(fitted, no_noise):
    rows = [{"id": name, "consent": "no" if place % 4 == 0 else "yes"} for place, name in enumerate(IDS)]
    # Stated: a query reads no column that is guessed from the patients.
    table = cc.Records.from_rows(rows, schema={"id": "code", "consent": "code"})
    patients = cc.Patients(table=table, codes=cc.Sequences(PATIENTS, IDS), by="id")
    policy = cc.Policy(constraints="graph c { node p where p.consent = 'no' exists p; }")
    site = cc.Site("north", patients, policy)
    shared = fitted.share(site)
    assert len(shared) == sum(row["consent"] == "yes" for row in rows)
    names = site.name_patients(fitted.card_.study)
    assert {IDS.index(name) % 4 for name in names} == {1, 2, 3}
    chosen = fitted.refit(max_events=4)
    some = chosen.refit(query="consent = 'no'").share(cc.Site("south", patients))
    assert len(some) == sum(row["consent"] == "no" for row in rows)


@pytest.mark.parametrize("text", ["E11.9", "(root)", "none of it", "42"])
def test_codes_that_are_none_are_named_to_the_hospital_alone(fitted, caplog, text):
    """They leave as any protected code: whether there is an answer does not depend on a patient."""
    own = open_site([*PATIENTS[:-1], [(1.0, text)] * 4])
    with caplog.at_level(logging.WARNING):
        shared = fitted.share(own)
    assert own.ledger.spent() > 0
    assert text in caplog.text or text == "42"
    assert text not in shared.labels
    assert len(shared) == len(PATIENTS)


def test_a_text_that_is_no_code_leaves_as_any_protected_code_alike():
    response = BlockResponse.without_blocks(50, np.arange(8, dtype=np.int32), Fraction(1))
    drawn = response.randomize(np.full(80_000, UNREADABLE, dtype=np.int32))
    counts = np.bincount(drawn, minlength=50)
    assert counts[8:].sum() == 0
    assert chisquare(counts[:8]).pvalue > 1e-6
    # The ratio to any other input stays below e^epsilon, both ways.
    n, bound = 8, math.e
    for other in (float(response.inside), float(response.elsewhere)):
        assert 1 / n <= bound * other * (1 + 1e-12)
        assert other <= bound / n * (1 + 1e-12)


def test_several_hospitals_are_shared_by_name_and_one_that_refuses_is_left_out(fitted):
    sites = [
        cc.Site(name, cc.Sequences(make_patients(40, seed)), policy)
        for seed, (name, policy) in enumerate(
            {"a": None, "b": cc.Policy(modes=("exact",)), "c": None}.items(), start=5
        )
    ]
    shared = fitted.share(cc.House(sites))
    assert list(shared) == ["a", "c"]
    assert [(one.site, one.rule) for one in fitted.card_.refusals] == [("b", "mode")]
    region = cc.Region("r", cc.House(sites[:2]))
    with pytest.raises(HouseError, match="for their own hospital to hand on"):
        fitted.share(cc.House([region]))
    assert all(site.ledger.spent() <= rho_from_pure(Fraction(1, 2)) for site in sites)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"show_hidden": False},
        {"mechanism": "umaxrr"},
        {"mechanism": "k-rr"},
        {"block_size": 2},
        {"epsilon": 3},
    ],
)
def test_the_agreed_design_is_the_mechanism_itself(fitted, changes):
    sharing = fitted.refit(**changes)
    taxonomy, response = open_design(sharing.propose().design)
    own = sharing.mechanism_
    assert taxonomy.codes == sharing.taxonomy.codes
    assert (response.replaced, response.epsilon) == (own.replaced, own.epsilon)
    for name in ("protected", "never_shown", "places"):
        assert np.array_equal(getattr(response, name), getattr(own, name)), name
    inputs = np.arange(len(taxonomy.codes))[:: 1 if "mechanism" not in changes else 40]
    assert np.array_equal(response.find_hidden(inputs), own.find_hidden(inputs))


def test_any_tree_can_be_agreed_to(tmp_path):
    (tmp_path / "tree.csv").write_text(
        "parent,child\nbody,liver\nbody,heart\nmind,drink\nmind,drugs\nmind,sleep\n,body\n,mind\n"
    )
    auxiliary = [[(0.0, "drink"), (1.0, "liver")], [(0.0, "heart")], [(0.0, "sleep")]] * 20
    sharing = cc.CodeSharing(
        cc.Taxonomy.read(tmp_path / "tree.csv"), sensitive=["drink", "drugs"], epsilon="0.1", max_events=3
    ).fit(auxiliary)
    assert "liver" in sharing.protected_
    shared = sharing.share(cc.Site("north", cc.Sequences(auxiliary)))
    assert set(shared.labels) <= {"drink", "drugs", "liver", "heart", "sleep"}


def test_suppression_is_no_sharing_that_a_ledger_could_be_charged_for(fitted):
    with pytest.raises(StudyError, match="suppression has no price"):
        fitted.refit(mechanism="suppression").share(open_site())
    with pytest.raises(StudyError, match="query and dates are for the patients of a site"):
        fitted.refit(query="age > 3").share(PATIENTS)


DESIGN = {
    "taxonomy": "icd9",
    "digits": 3,
    "headings": "refuse",
    "zeros": "kept",
    "tree": {},
    "sensitive": ("042", "303"),
    "hidden": ("571",),
    "company": (),
    "show_hidden": True,
    "block_size": 2,
    "epsilon": "1",
    "max_events": 3,
    "dates": "kept",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sensitive": ()}, "names at least one sensitive code"),
        ({"hidden": ("303",)}, "names each protected code once"),
        ({"epsilon": "0"}, "says the epsilon of one event"),
        ({"epsilon": "1e9"}, "says the epsilon of one event"),
        ({"max_events": 0}, "max_events must be a whole number from 1"),
        ({"block_size": 3}, "a block must be smaller than the set of protected codes: a size of 3"),
        ({"taxonomy": "icd11"}, "'taxonomy' of a design must be one of icd9, icd10, tree"),
        ({"taxonomy": "tree"}, "gives its tree where its taxonomy is 'tree'"),
        ({"tree": {"a": "b"}}, "gives its tree where its taxonomy is 'tree'"),
        ({"sensitive": ("042", "303.9")}, "'303.9' is not a code of"),
        ({"digits": 9}, "digits must be one of 3, 4, 5"),
        (
            {"company": tuple(f"x{number}" for number in range(3000))},
            "at most 2000 codes are protected in blocks",
        ),
        (
            {"taxonomy": "tree", "tree": {"042": "303", "303": "042"}},
            "the tree of a design is none",
        ),
    ],
)
def test_a_design_that_is_none_is_refused(changes, said):
    with pytest.raises(StudyError, match=said.replace("(", r"\(")):
        open_design(CodeDesign(**{**DESIGN, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": pack(np.array([1, 1]))},
        {"counts": pack(np.array([-1, 4]))},
        {"counts": pack(np.array([2**62, 2**62, 2**62, 2**62 + 3]))},
        {"counts": pack(np.array([1.0, 2.0]))},
        {"counts": pack(np.array([[1, 2]]))},
        {"codes": pack(np.array([0, 1, 2]))},
        {"codes": pack(np.array([0, -1, 1]))},
        {"times": pack(np.array([0.0, 1.0]))},
        {"times": pack(np.array([0.0, np.nan, 1.0]))},
        {"labels": ["250", "\x1b[2J"]},
        {"labels": ["250", ""]},
    ],
)
def test_what_a_hospital_answers_is_looked_at(changes):
    honest = CodesReply(
        "days", ["250", "303"], pack(np.array([1, 2])), pack(np.array([0, 1, 1])), pack(np.zeros(3))
    )
    assert [len(history) for history in honest.open()] == [1, 2]
    with pytest.raises(MessageError, match="not the codes of patients"):
        msgspec.structs.replace(honest, **changes).open()


@given(st.lists(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from(CLEAR)), max_size=5), max_size=6))
def test_codes_travel_as_they_are(histories):
    sequences = cc.Sequences(histories)
    travelled = decode(msgspec.msgpack.encode(_write_codes(sequences)), CodesReply).open()
    assert travelled.to_lists() == sequences.to_lists()


@st.composite
def neighbours(draw):
    """Two hospitals of which one has a patient more, fewer or changed: the ids of all others stay."""
    codes = st.sampled_from([*CLEAR, "303.9", "042", "571"])
    # Where max_events cuts through a moment, which of its codes leave is drawn anew (test_order_channels.py).
    history = st.lists(st.tuples(st.floats(0, 1000), codes), max_size=6, unique_by=lambda event: event[0])
    patients = draw(st.lists(history, min_size=4, max_size=12))
    at = draw(st.integers(0, len(patients) - 1))
    ids = [f"p{place}" for place in range(len(patients))]
    changed = draw(st.none() | history)
    others, other_ids = list(patients), list(ids)
    if changed is None:
        del others[at], other_ids[at]
    else:
        others[at] = changed
    return (patients, ids), (others, other_ids), ids[at]


@settings(max_examples=25, deadline=None)
@given(neighbours())
def test_one_patient_changes_no_charge_no_refusal_and_nobody_elses_codes(fitted, pair):
    """With the noise at zero, so that whatever else moves is seen."""
    identity = Identity.create()
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, SWITCHED_ON)
        for patients, ids in pair[:2]:
            policy = cc.Policy(minimum_patients=0)
            site = cc.Site("north", cc.Sequences(patients, ids), policy, identity=identity)
            asker, question = ask_by_hand(site, fitted)
            with zero_noise():
                reply = open_reply(asker.ask(site, asker.wrap(question)))
            assert isinstance(reply, Answer)
            shared = decode(reply.body, CodesReply).open()
            by_id = dict(zip(site.name_patients(asker.study), shared, strict=True))
            by_id.pop(pair[2], None)
            seen.append((reply.charge.cost, site.ledger.spent(), reply.charge.capped, by_id))
    assert seen[0] == seen[1]


def test_every_kind_that_hands_on_is_tested_here():
    assert [kind for kind, place in KINDS.items() if issubclass(load(place), Randomised)] == ["codes.shared"]


def test_an_agreed_sharing_says_what_it_is(fitted):
    agreed = fitted.propose()
    assert "042" in repr(agreed)
    assert "max_events" in AgreedSharing.__doc__
    assert AgreedSharing(**agreed.get_params()).get_params() == agreed.get_params()
    with pytest.raises(StudyError, match="the 'max_events' of a sharing of codes must be a whole number"):
        AgreedSharing(**{**agreed.get_params(), "max_events": 0})
    with pytest.raises(LedgerError, match="has no study"):
        open_site().name_patients("nothing")
