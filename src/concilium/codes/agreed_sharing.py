"""A sharing of codes as hospitals agree to it: `CodeSharing.propose()` makes one, terms carry it, a gate answers it.

It says all that happens to a code: which are protected and why, how large blocks are, what an event costs and how many
count. Nothing in it depends on the patients who are shared; what follows from auxiliary patients (which codes are
hidden for what they say) is read by everybody who reads the terms, and those patients are not protected by anything.

docs/methods.md, section 7.13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar

import msgspec

from concilium.codes import sharing_parameters as declared
from concilium.codes.code_design import CodeDesign, check_design
from concilium.codes.sensitive_codes import sensitive_codes
from concilium.codes.shared_codes import AskSharedCodes, CodesReply
from concilium.errors import ConciliumError
from concilium.models.method import QueryText, documented
from concilium.parameters import Parameter, choice, names, whole_number
from concilium.privacy.accounting import Plan, PlannedQuestion, rho_from_pure, say_epsilon
from concilium.protocol.proposal import Proposal
from concilium.protocol.questions import Conversation, Learned, Partners
from concilium.records.sequences import Sequences

NOT_FOR_CARE = "Not for care: codes in this file are randomised, and many are false."


def _read_tree(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and text for pair in value.items() for text in pair
    ):
        raise ValueError
    return dict(value)


def _list_of_codes(about: str) -> Parameter:
    return Parameter("a list of codes", lambda value: sorted(names(value)), about)


class _SharedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each hospital shared."""

    sites: dict[str, CodesReply]


@documented
@dataclass(eq=False, repr=False)
class AgreedSharing(Proposal[_SharedBody]):
    """What hospitals agree to before their patients' codes are shared: `CodeSharing(...).fit(auxiliary).propose()`."""

    method: ClassVar[str] = "code-sharing"
    called: ClassVar[str] = "a sharing of codes"
    description: ClassVar[str] = "patients' dated codes, the sensitive ones randomised"
    releases: ClassVar[tuple[str, ...]] = ("shared",)
    handed_on: ClassVar[str] = "codes"
    reads_columns: ClassVar[bool] = False
    pure_releases: ClassVar[tuple[str, ...]] = ("shared",)
    answers_at_random: ClassVar[bool] = True

    sensitive: Annotated[
        Sequence[str],
        _list_of_codes("the codes that nobody is to learn of a patient"),
    ]
    epsilon: declared.Epsilon
    max_events: declared.MaxEvents
    block_size: Annotated[
        int,
        whole_number(1, declared.MOST_IN_BLOCKS, "a protected code mostly leaves as one of so many like it"),
    ]
    hidden: Annotated[
        Sequence[str],
        _list_of_codes("protected as well, for what they say about sensitive ones"),
    ] = ()
    company: Annotated[
        Sequence[str],
        _list_of_codes("protected as well, as company of sensitive ones in blocks"),
    ] = ()
    show_hidden: declared.ShowHidden = True
    taxonomy: Annotated[
        str,
        Parameter(
            '"icd9", "icd10" or "tree"', choice("icd9", "icd10", "tree"), "the classification of the codes"
        ),
    ] = "icd9"
    digits: declared.Digits = 3
    headings: declared.Headings = "refuse"
    zeros: declared.Zeros = "kept"
    tree: Annotated[
        Mapping[str, str],
        Parameter("a parent for each code", _read_tree, 'the classification itself, of taxonomy "tree"'),
    ] = field(default_factory=dict)
    dates: declared.Dates = declared.SINCE_FIRST
    alpha: declared.Alpha = declared.ALPHA
    lengths: declared.Lengths = ()
    query: QueryText = ""

    @property
    def release(self) -> str:  # type: ignore[override]
        return "shared"

    def check(self) -> None:
        check_design(self.design)

    @cached_property
    def design(self) -> CodeDesign:
        """What every question repeats of it."""
        plain = {name: getattr(self, name) for name in CodeDesign.__struct_fields__ if name != "epsilon"}
        lists = {name: tuple(plain[name]) for name in ("sensitive", "hidden", "company", "lengths")}
        return CodeDesign(**{**plain, **lists, "epsilon": str(self.epsilon)})

    @property
    def pure_price(self) -> Fraction:
        return self.design.price

    def plan(self) -> Plan:
        note = (
            f"the dated codes of every patient, {len(self.design.outputs) + len(self.design.never_shown)} of them "
            "protected, all others unprotected but for those that are overwritten"
        )
        return Plan("rho", (PlannedQuestion(AskSharedCodes.kind, rho_from_pure(self.pure_price), note),))

    @property
    def subject(self) -> str:
        return f"{len(self.sensitive)} sensitive codes"

    @property
    def worst_case(self) -> Sequence[str]:
        per_event = Fraction(self.design.epsilon)
        factor = say_epsilon(math.exp(min(float(per_event), 700.0)))
        whole = say_epsilon(float(self.pure_price))
        return (
            "The house gets a list of dated codes for each patient, under a number. Treat all codes that are not "
            "protected as handed over, with when and how often: whoever knows some of them finds the patient.",
            f"Of a protected code: any two codes that one entry could have been explain it almost equally well, one at "
            f"most {factor} times as well as the other (epsilon = {say_epsilon(float(per_event))}). Of all "
            f"{self.max_events} entries of a patient together the bound is epsilon = {whole}.",
            "What unprotected codes say about a sensitive one is bounded by no price. The house chose the hidden "
            "codes for that, as it says; judge them.",
        )

    def find_reservation(self, sensitive: Sequence[str] | None) -> str | None:
        """A house may name any codes as sensitive, and leave all others unprotected: what a policy agrees to by itself
        hides at least those that the policy names, or the law (sensitive_codes.py)."""
        taxonomy = check_design(self.design)
        try:
            wanted = sensitive_codes(taxonomy) if sensitive is None else sensitive
            codes = {code for text in wanted for code in taxonomy.under(text)}
        except ConciliumError:
            return "its policy does not say which codes of this classification must be hidden"
        shown = codes.difference(self.sensitive, self.hidden, self.company)
        return f"its policy agrees to no sharing by itself that does not hide {min(shown)}" if shown else None

    def converse(self, partners: Partners) -> Conversation[Learned[_SharedBody]]:
        replies = yield AskSharedCodes(query=self.query, target="", design=self.design)
        patients: dict[str, int | None] = {site: one.counts.shape[0] for site, one in replies.items()}
        return Learned(_SharedBody(replies), patients, [NOT_FOR_CARE])

    @property
    def sequences_(self) -> dict[str, Sequences]:
        """What each hospital shared: patients 1, 2, ... with their codes."""
        return {site: one.open() for site, one in self.body.sites.items()}

    def _summary(self) -> str:
        return f"{sum(one.numbers for one in self.body.sites.values())} codes"
