"""A classification of diagnoses as a tree: which codes there are, what a text means, how far apart two codes are.

Eq. 4 of Bonomi, Gousheh and Fan (2023) measures distance by the lowest common ancestor (code_tree.py). `digits`
chooses how fine a code is: 3 is the category (250), 4 and 5 go on behind the dot (250.0, 250.01). Every finer code
is read as the one that it belongs to; a code that ends earlier (042) stays as it is.
"""

from __future__ import annotations

import bisect
import difflib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from concilium.codes.code_tree import ROOT, CodeTree
from concilium.codes.icd import (
    Grammar,
    Zeros,
    looks_like_icd9,
    looks_like_icd10,
    read_icd9,
    read_icd9_tree,
    read_icd10,
    read_icd10_tree,
)
from concilium.codes.sharing_parameters import ALPHA
from concilium.errors import StudyError, UnknownCode

if TYPE_CHECKING:
    from pandas import DataFrame

Headings: TypeAlias = Literal["refuse", "keep"]

BEGINNINGS = {"atc": (1, 3, 4, 5, 7), "icd9-procedures": (2, 3, 4), "icd10-pcs": (1, 2, 3, 4, 5, 6, 7)}
"""How many characters the headings above a code have, and the code itself, without dots."""

MOST_NAMED = 10  # codes that an error names
REMEMBERED = 4  # matrices of distances that a taxonomy keeps


class Taxonomy:
    """`Taxonomy.icd9(digits=3)`, `Taxonomy.icd10(digits=3)`, or `Taxonomy.read("tree.csv")`.

    `codes` are all codes at the chosen level, sorted; `root` stands for what was suppressed.
    """

    root = ROOT

    def __init__(
        self,
        name: str,
        tree: CodeTree,
        titles: Mapping[str, str],
        *,
        digits: int | None = None,
        finer: Mapping[str, str] | None = None,
        grammar: Grammar | None = None,
        other: tuple[str, Callable[[str], bool]] | None = None,
        zeros: Zeros = "kept",
        headings: Headings = "refuse",
    ) -> None:
        self.name = name
        self.digits = digits
        self.headings = headings
        self.tree = tree
        self.codes: tuple[str, ...] = tuple(sorted(tree.leaves))
        self.number_of: dict[str, int] = {code: number for number, code in enumerate(self.codes)}
        self._titles = titles
        self._finer = finer or {}
        self._read = grammar or _read_names(tree)
        self._other = other
        self.zeros = zeros
        self._distances: OrderedDict[tuple[tuple[str, ...], float], NDArray[np.float64]] = OrderedDict()

    @classmethod
    def icd9(cls, digits: int = 3, *, zeros: Zeros = "kept", headings: Headings = "refuse") -> Taxonomy:
        """ICD-9-CM. `zeros="lost"` is for a file whose codes lost dots and leading zeros (icd.py).

        At four and five digits a heading such as 585 is no code: it was one once, or somebody cut the others.
        `headings="keep"` makes each a code of its own beside those under it.
        """
        _check_choice("digits", digits, (3, 4, 5))
        _check_choice("zeros", zeros, ("kept", "lost"))
        _check_choice("headings", headings, ("refuse", "keep"))
        return _make_icd("ICD-9-CM", digits, headings, zeros)

    @classmethod
    def icd10(cls, digits: int = 3, *, headings: Headings = "refuse") -> Taxonomy:
        """ICD-10-CM, to the category (3) or as far as 7 characters; `headings` as for ICD-9-CM."""
        _check_choice("digits", digits, (3, 4, 5, 6, 7))
        _check_choice("headings", headings, ("refuse", "keep"))
        return _make_icd("ICD-10-CM", digits, headings)

    @classmethod
    def named(cls, name: str, digits: int, zeros: str, headings: str) -> Taxonomy | None:
        """The classification that is called "icd9" or "icd10"; None where it is called otherwise."""
        if name == "icd9":
            return cls.icd9(digits, zeros=cast(Zeros, zeros), headings=cast(Headings, headings))
        return cls.icd10(digits, headings=cast(Headings, headings)) if name == "icd10" else None

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str] | DataFrame,
        table: str | None = None,
        *,
        parent: str = "parent",
        child: str = "child",
        title: str | None = None,
    ) -> Taxonomy:
        """Any tree: one row for each node with its parent, from any source that `Records.read` takes.

        What has no parent (an empty cell, or no row) is at the top. The codes are the nodes without children.
        A text is a code if it is the same but for blanks around it, or else but for the case of letters.
        """
        from concilium.codes.code_tree import read_tree

        name, parent_of, titles = read_tree(source, table, parent, child, title)
        return cls(name, CodeTree(parent_of), titles)

    @classmethod
    def read_codes(
        cls,
        source: str | os.PathLike[str] | DataFrame,
        scheme: str,
        *,
        code: str = "code",
        title: str | None = None,
    ) -> Taxonomy:
        """A classification whose headings are beginnings of its codes, from a list of the codes: "atc" (medications),
        "icd9-procedures" or "icd10-pcs" (procedures).

        The list is that of the classification, and not of codes that patients have: what is in it is told to everybody.
        """
        from concilium.codes.code_tree import read_list

        _check_choice("scheme", scheme, tuple(BEGINNINGS))
        name, titles = read_list(source, code, title)
        parent_of: dict[str, str] = {}
        called: dict[str, str] = {}
        for text, words in titles.items():
            bare = text.strip().upper().replace(".", "")
            if len(bare) != BEGINNINGS[scheme][-1]:
                continue  # a heading: those above a code follow from it
            above = ROOT
            for width in BEGINNINGS[scheme]:
                node = bare[:width]
                parent_of[node], above = above, node
            called[bare] = words
        if not parent_of:
            raise StudyError(f"{name}: column {code!r} has no code of {BEGINNINGS[scheme][-1]} characters")
        called |= {node: titles[node] for node in parent_of if node not in called and titles.get(node)}
        return cls(f"{scheme} of {name}", CodeTree(parent_of), {c: t for c, t in called.items() if t})

    def __repr__(self) -> str:
        level = "" if self.digits is None else f", {self.digits} digits"
        return f"Taxonomy({self.name}{level}, {len(self.codes)} codes)"

    def __len__(self) -> int:
        return len(self.codes)

    def __contains__(self, code: object) -> bool:
        return code in self.tree.place_of

    def normalise(self, text: str) -> str:
        """The code at this level that a text means; `UnknownCode` where it means none, or more than one."""
        code, problem = self._find(text)
        if code is None:
            raise UnknownCode(self._say_unknown({text: problem}, 1), (text,))
        return code

    def normalise_all(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The code of each text; one error names all that mean none, and says where two classifications are mixed.

        What begins with a digit is ICD-9, what begins with a letter other than E and V is ICD-10. E and V codes are in
        both: those that this classification knows are read in it and prove nothing, the others count by their form.
        """
        found = {label: self._find(label) for label in dict.fromkeys(labels)}
        unknown = {label: problem for label, (code, problem) in found.items() if code is None}
        self._refuse_lost_zeros(found)
        if unknown:
            raise UnknownCode(self._say_unknown(unknown, len(found)), tuple(unknown))
        return tuple(str(found[label][0]) for label in labels)

    def read_each(self, labels: Iterable[str]) -> list[str | None]:
        """The code of each text by itself, whatever the others are; None where it means none."""
        return [self._find(label)[0] for label in labels]

    def distances(self, codes: Iterable[str], alpha: float = ALPHA) -> NDArray[np.float64]:
        """Eq. 4 for every pair of these codes, [k, k], read-only; `root` is 1 from everything."""
        if not 0 <= alpha <= 1:
            raise StudyError(f"alpha must be from 0 to 1; got {alpha!r}")
        names = tuple(code if code == ROOT or code in self else self.normalise(code) for code in codes)
        key = names, float(alpha)
        if key in self._distances:
            self._distances.move_to_end(key)
            return self._distances[key]
        distances = self.tree.measure(names, alpha)
        distances.flags.writeable = False
        self._distances[key] = distances
        if len(self._distances) > REMEMBERED:
            self._distances.popitem(last=False)
        return distances

    def describe(self, code: str) -> str:
        """The title of a code, or of a chapter, section or category."""
        if code == ROOT:
            return "suppressed"
        node = self._name(code)
        if node in self._titles:
            return self._titles[node]
        heading = node.rstrip(".-")
        if heading in self._titles:
            return self._titles[heading]
        category = heading.partition(".")[0]
        return f"{self._titles[category]} ({heading})" if category in self._titles else node

    def ancestors(self, code: str) -> tuple[str, ...]:
        """The nodes above a code, the chapter first: ("290-319", "300-316", "304") of 304.01."""
        node = self._name(code)
        return self.tree.path(self._finer.get(node, node))[:-1]

    def under(self, node: str) -> tuple[str, ...]:
        """The codes at this level that a chapter, section, category or code contains or belongs to; sorted."""
        name = self._name(node)
        code = self._finer.get(name, name)
        heading = _as_heading(code)
        return tuple(sorted(self.tree.leaves_under(heading if heading in self.tree else code)))

    def _name(self, text: str) -> str:
        """A node of any level by its name, or else by what its text means."""
        if text in self.tree or text in self._finer:
            return text
        known = self._known(text)
        return known[0] if len(known) == 1 else self.normalise(text)

    def _known(self, text: str) -> list[str]:
        """What a text may mean: codes, of this level or finer, or where it means none, headings."""
        readings = self._read(text) if isinstance(text, str) else ()
        nodes = [node for node in readings if node in self.tree or node in self._finer]
        codes = [node for node in nodes if node in self or node in self._finer]
        return codes or nodes

    def _find(self, text: str) -> tuple[str | None, str]:
        """The code that a text means, or None and why, beginning with a comma or a bracket."""
        known = self._known(text)
        if len(known) > 1:
            return None, f" may be {' or '.join(f'{code} ({self.describe(code)})' for code in known)}"
        if not known:
            return None, f" (nearest: {self._nearest(text)})"
        code = self._finer.get(known[0], known[0])
        if code in self:
            return code, ""
        beneath = self.tree.leaves_under(code)
        lower = "" if self.digits is None else f" at digits={self.digits}"
        return None, f" (a heading of {len(beneath)} codes{lower}, such as {beneath[0]})"

    def _nearest(self, text: str) -> str:
        """The code that shares the longest beginning with a text; in a tree of one's own, the one most alike."""
        if self.digits is None:
            folded = {code.casefold(): code for code in self.codes}
            return folded[difflib.get_close_matches(str(text).casefold(), folded, n=1, cutoff=0)[0]]
        readings = self._read(text) if isinstance(text, str) else ()
        meant = readings[0] if readings else str(text).strip().upper()
        place = bisect.bisect(self.codes, meant)
        beside = self.codes[max(place - 1, 0) : place + 1]
        return max(beside, key=lambda code: _count_shared(code, meant))

    def _refuse_lost_zeros(self, found: Mapping[str, tuple[str | None, str]]) -> None:
        """Digits that are too few beside digits that are too many for a category: dots and zeros were lost."""
        if self.name != "ICD-9-CM" or self.zeros == "lost":
            return
        digits = [bare for label in found if isinstance(label, str) and (bare := label.strip()).isdigit()]
        short = next((bare for bare in digits if len(bare) < 3), None)
        long = next((bare for bare in digits if len(bare) > 3), None)
        if short is not None and long is not None:
            raise UnknownCode(
                f"the codes have lost both dots and leading zeros ({short!r} beside {long!r}), so that '389' may be "
                '389 or 038.9; write them as they were, or use Taxonomy.icd9(zeros="lost"), which refuses what is '
                "in doubt",
                (short,),
            )

    def _say_unknown(self, unknown: Mapping[str, str], labels: int) -> str:
        said = []
        if self._other is not None:
            name, has_its_form = self._other
            strange = [label for label in unknown if isinstance(label, str) and not self._known(label)]
            foreign = [label for label in strange if has_its_form(label)]
            if foreign and len(foreign) == labels:
                listed = ", ".join(map(repr, foreign[:3])) + (", ..." if len(foreign) > 3 else "")
                keyword = "".join(name.lower().split("-")[:2])
                return f"these are codes of {name} ({listed}), not of {self.name}; taxonomy = {keyword!r} reads them"
            if foreign:
                said.append(
                    f"codes of {self.name} and {name} are mixed ({len(foreign)} of {labels} have the form of {name}, "
                    f"such as {foreign[0]!r}); share each classification by itself"
                )
        what = "1 code is" if len(unknown) == 1 else f"{len(unknown)} codes are"
        first = list(unknown.items())[:MOST_NAMED]
        listed = ", ".join(f"{label!r}{problem}" for label, problem in first)
        listed += f", and {len(unknown) - len(first)} more" if len(unknown) > len(first) else ""
        said.append(f"{what} not in {self!r}: {listed}")
        if self.digits is not None and any(map(self._known, unknown)):
            said.append('headings="keep" makes headings codes of their own')
        return "; ".join(said)


@cache
def _make_icd(name: str, digits: int, headings: Headings, zeros: Zeros = "kept") -> Taxonomy:
    is_old = name == "ICD-9-CM"
    parent_of, titles = read_icd9_tree() if is_old else read_icd10_tree()
    tree, finer = _cut(parent_of, digits, headings)
    return Taxonomy(
        name,
        tree,
        titles,
        digits=digits,
        finer=finer,
        grammar=partial(read_icd9, zeros=zeros) if is_old else read_icd10,
        other=("ICD-10-CM", looks_like_icd10) if is_old else ("ICD-9-CM", looks_like_icd9),
        zeros=zeros,
        headings=headings,
    )


def _cut(parent_of: Mapping[str, str], digits: int, headings: Headings) -> tuple[CodeTree, dict[str, str]]:
    """The tree down to so many digits, and for each finer code the one that it belongs to."""

    def is_finer(node: str) -> bool:
        return 3 + len(node.partition(".")[2]) > digits

    finer = {}
    for node in parent_of:
        if is_finer(node):
            above = node
            while is_finer(above):
                above = parent_of[above]
            finer[node] = above
    kept = {node: above for node, above in parent_of.items() if node not in finer}
    if headings == "keep":
        inner = {node: _as_heading(node) for node in kept.values() if "-" not in node and node != ROOT}
        kept = {inner.get(node, node): inner.get(above, above) for node, above in kept.items()} | inner
    return CodeTree(kept), finer


def _as_heading(node: str) -> str:
    """What a category or subcategory is called where its own name is that of a code: 585.- or 250.0-."""
    return f"{node}-" if "." in node else f"{node}.-"


def _count_shared(one: str, other: str) -> int:
    """How many characters two texts have in common at the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _read_names(tree: CodeTree) -> Grammar:
    """The grammar of a tree of one's own: the name itself, or else all that differ by the case of letters."""
    alike: dict[str, list[str]] = {}
    for node in tree.parent_of:
        alike.setdefault(node.casefold(), []).append(node)

    def read(text: str) -> tuple[str, ...]:
        bare = text.strip()
        return (bare,) if bare in tree else tuple(alike.get(bare.casefold(), ()))

    return read


def split_scheme(text: str) -> tuple[str, str]:
    """The scheme and the file of "atc:codes.csv"; no scheme where the text is a file alone."""
    scheme, colon, file = text.partition(":")
    return (scheme, file) if colon and scheme in BEGINNINGS else ("", text)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if isinstance(value, bool) or value not in choices:
        raise StudyError(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}")
