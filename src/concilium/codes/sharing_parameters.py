"""The parameters of a sharing of codes, each declared once.

`CodeSharing` takes them in Python, a study file under [code-sharing], `concilium share` as options. `AgreedSharing`
repeats those that hospitals agree to. Nothing heavy is loaded here, so that the help of a command is quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

from concilium.parameters import (
    MOST_COUNTED,
    Parameter,
    Parametrised,
    flag,
    name,
    names,
    number,
    one_of,
    text,
    whole,
    whole_number,
)

MECHANISMS = ("blocks", "umaxrr", "k-rr", "suppression")
SINCE_FIRST, KEPT = "since first", "kept"
# Blocks look at the distances of all protected codes to each other.
MOST_IN_BLOCKS = 2_000
MOST_EVENTS = 100_000
MOST_STEPS = 3
PRIOR = 5.0
ALPHA = 0.5


def _read_epsilon(value: Any) -> Fraction:
    """The exact number: 0.1 is one tenth."""
    from concilium.models.method import as_written, read_epsilon
    from concilium.privacy.accounting import exact_positive

    return exact_positive(as_written(read_epsilon(value)), "epsilon")


def _read_taxonomy(value: Any) -> Any:
    """A name, a file, or a Taxonomy."""
    return name(value) if isinstance(value, str) or not hasattr(value, "tree") else value


_read_bound = number(lambda bound: 0 < bound <= 1)


def _read_bounds(value: Any) -> float | dict[str, float]:
    """One bound, or one for each code."""
    if isinstance(value, Mapping):
        return {name(code): _read_bound(bound) for code, bound in value.items()}
    bound: float = _read_bound(value)
    return bound


def _list_of_codes(about: str) -> Parameter:
    """A parameter that takes codes."""
    return Parameter("a list of codes", names, about)


Epsilon = Annotated[
    Any,
    Parameter(
        "a number above 0 (at least 1e-30, at most 1e6)",
        _read_epsilon,
        "what one event costs; everyone pays for max_events of them",
    ),
]
MaxEvents = Annotated[int, whole_number(1, MOST_EVENTS, "of a longer history the latest so many are shared")]
Digits = Annotated[int, whole_number(3, 7, "how fine the codes are that are shared")]
Headings = Annotated[
    str,
    one_of(
        "refuse", "keep", about="'keep' where headings such as 585 are codes of their own below the category"
    ),
]
Zeros = Annotated[
    str, one_of("kept", "lost", about="'lost' where ICD-9 codes may have lost dots and leading zeros")
]
ShowHidden = Annotated[
    bool,
    Parameter(
        "True or False",
        flag,
        "whether codes that are hidden for what they say may come out, at random; if not, sensitive codes lose less, "
        "and the hidden ones are lost",
    ),
]
Dates = Annotated[
    str,
    one_of(
        SINCE_FIRST,
        KEPT,
        about=f"'{SINCE_FIRST}': events leave with the days since the patient's first; '{KEPT}': with their dates",
    ),
]
Alpha = Annotated[
    float,
    Parameter(
        "a number from 0 to 1",
        number(lambda alpha: 0 <= alpha <= 1),
        "how much the common heading weighs in the distance of two codes; the rest is how far apart they are under it",
    ),
]


def _read_lengths(value: Any) -> tuple[int, ...]:
    """Lengths as a sorted tuple."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError
    read = whole(1, MOST_EVENTS)
    return tuple(sorted({read(int(one) if isinstance(one, str) else one) for one in value}))


Lengths = Annotated[
    Sequence[int],
    Parameter(
        "a list of whole numbers",
        _read_lengths,
        "public lengths: a history is cut to the longest of these that it reaches, so that its own length does not "
        "show; empty: lengths show",
    ),
]


@dataclass(eq=False, repr=False)
class SharingParameters(Parametrised):
    """What `CodeSharing` takes."""

    method: ClassVar[str] = "code-sharing"
    called: ClassVar[str] = "a CodeSharing"

    taxonomy: Annotated[
        Any,
        Parameter(
            "'icd9', 'icd10', a table with the columns parent and child, 'atc:FILE' or a Taxonomy",
            _read_taxonomy,
            "the classification of the codes: icd9, icd10, a table with the columns parent and child, or one with a "
            "column code of medications (atc:FILE) or procedures (icd9-procedures:FILE, icd10-pcs:FILE)",
        ),
    ] = "icd9"
    digits: Digits = 3
    _: KW_ONLY
    zeros: Zeros = "kept"
    headings: Headings = "refuse"
    sensitive: Annotated[
        Sequence[str] | None,
        _list_of_codes(
            "the codes to hide, or headings above them; None: those of Title 38 U.S.C. section 7332"
        ),
    ] = None
    choices: Annotated[
        Sequence[str],
        _list_of_codes(
            "codes or headings that patients may ask to have hidden: hidden for everyone, so that no wish shows"
        ),
    ] = ()
    hidden: Annotated[
        Sequence[str] | None,
        _list_of_codes(
            "codes to hide with the sensitive ones for what they say; None: a public list, or what auxiliary patients "
            "teach"
        ),
    ] = None
    epsilon: Epsilon = 1
    max_events: MaxEvents = 100
    lengths: Lengths = ()
    gamma: Annotated[
        float | Mapping[str, float] | None,
        Parameter(
            "a number above 0 and at most 1, or one for each sensitive code",
            _read_bounds,
            "what codes that are not protected may say on average about a sensitive one; 1: no bound",
        ),
    ] = 0.05
    gamma_max: Annotated[
        float | None,
        Parameter(
            "a number above 0 and at most 1",
            _read_bound,
            "what any one code that is not protected may say about a sensitive one; 1: no bound",
        ),
    ] = 0.2
    within: Annotated[
        float,
        Parameter(
            "a number of days of at least 0",
            number(lambda days: days >= 0),
            "codes at most so many days apart belong together",
        ),
    ] = 300.0
    steps: Annotated[int, whole_number(1, MOST_STEPS, "how many edges the paths between codes may have")] = 1
    prior: Annotated[
        float,
        Parameter(
            "a number of patients of at least 0",
            number(lambda patients: 0 <= patients <= 1e9),
            "how many patients' weight the share of all patients has in what one code says about another",
        ),
    ] = PRIOR
    mechanism: Annotated[
        str,
        one_of(
            *MECHANISMS,
            about="how codes are drawn: blocks, umaxrr or k-rr; suppression protects nothing, and is there to compare",
        ),
    ] = "blocks"
    block_size: Annotated[
        int | None,
        whole_number(1, MOST_IN_BLOCKS, "how many similar codes share a block; None: what loses least"),
    ] = None
    most_hidden: Annotated[
        int | None,
        whole_number(
            0,
            MOST_COUNTED,
            "how many codes are hidden at most for what they say; None: half of those seen, or 50",
        ),
    ] = None
    most_company: Annotated[
        int, whole_number(0, MOST_COUNTED, "how many codes are added at most for the sake of better blocks")
    ] = 100
    show_hidden: ShowHidden = True
    alpha: Alpha = ALPHA
    dates: Dates = SINCE_FIRST
    query: Annotated[
        str,
        Parameter("text", text, "attributes of interest: the patients to share; empty: everyone", "study"),
    ] = ""

    def __post_init__(self) -> None:
        self.read_parameters()
