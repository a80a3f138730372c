"""The house's side of chapter 7 of the thesis: who takes part, one expert after the other, and how they vote together.

An expert is an ordinary distributed tree over the samples of its turn (Figure 7.2: the column S_j of all sites'
layouts). Everything the house knows of patients is what sites answered to three kinds of question: class counts,
crosstables of a sample, and the votes of an ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from concilium.errors import HouseError, nearest
from concilium.federation.messages import decode, encode
from concilium.federation.run import Run, together
from concilium.federation.schema import GlobalSchema, in_order, merge
from concilium.records.table import Value, label
from concilium.trees.ballot import AskVotes, Rule, Voter, is_for_positive
from concilium.trees.body import TreeBody
from concilium.trees.class_counts import AskClassCounts, ClassCounts, name_rest
from concilium.trees.crosstables import AskCrosstables, AskedAttribute, Split
from concilium.trees.growing import Counts, GrowingNode, finish, grow
from concilium.trees.layout import Sample
from concilium.trees.plain_tree import ask_schemas
from concilium.trees.settings import Settings
from concilium.trees.stopping import balanced_accuracy


@dataclass(frozen=True)
class Turnout:
    """The sites that take part, and their patients by class: the constrained data space of the thesis."""

    counts: Mapping[str, ClassCounts]
    classes: tuple[Value, Value]

    @property
    def positives(self) -> int:
        return sum(site.positives for site in self.counts.values())

    @property
    def patients(self) -> int:
        return self.positives + sum(site.negatives for site in self.counts.values())

    @property
    def patients_by_site(self) -> dict[str, int | None]:
        return {name: site.negatives + site.positives for name, site in self.counts.items()}

    @property
    def share(self) -> Fraction:
        """Of all patients, those who are positive (7.5.1 calls 127 to 8,089 1.55 %)."""
        return Fraction(self.positives, self.patients)


def count_classes(run: Run, settings: Settings, sample: Sample) -> Turnout:
    """Ask for the class counts; sites that opt out are not asked again."""
    asked = AskClassCounts(query=settings.query, target=settings.target, sample=sample)
    seen = {site: decode(body, ClassCounts) for site, body in run.gather("tree.classes", asked).items()}
    run.excuse({site: counts.opts_out for site, counts in seen.items() if counts.opts_out is not None})
    values = in_order(value for counts in seen.values() for value in counts.values)
    seen = {site: counts for site, counts in seen.items() if counts.opts_out is None}
    if not seen:
        names = [label(value) for value in values if value is not None]
        if names:  # only who could take part, but has no positive patient, tells values without counts
            what = f"{settings.target} = {label(sample.positive)}"
            known = f"; its values there are {', '.join(names[:10])}{nearest(label(sample.positive), names)}"
            raise HouseError(f"no site that could take part has a patient with {what}{known}")
        raise HouseError(f"every site opted out: {together(run.opted_out.items())}")
    return Turnout(seen, name_classes(settings.target, sample.positive, seen))


def name_classes(target: str, positive: Value, seen: Mapping[str, ClassCounts]) -> tuple[Value, Value]:
    """The two classes, negative first, as the sites write them; of more values, `not ...` and `...` as text."""
    values = in_order(value for counts in seen.values() for value in counts.values)
    own = next((value for value in values if value is not None and label(value) == label(positive)), positive)
    others = [value for value in values if value is not None and label(value) != label(positive)]
    if not others or not any(counts.negatives for counts in seen.values()):
        raise HouseError(
            f"every patient has {target} = {label(positive)}: there is nothing to tell apart; widen the query"
        )
    return (others[0], own) if len(others) == 1 else (name_rest(positive), label(positive))


class Council:
    """The sites that take part, with the schema they share: grows experts over them and has experts vote there."""

    def __init__(
        self, run: Run, settings: Settings, sample: Sample, classes: tuple[Value, Value], rule: Rule
    ) -> None:
        self._run, self._settings, self._sample, self._rule = run, settings, sample, rule
        self.seen = ask_schemas(settings, run)
        merged = merge(self.seen, settings.bins, settings.target)
        self._templates = {site: encode(merged.conditional(known)) for site, known in self.seen.items()}
        self.schema: GlobalSchema = replace(merged, classes=classes)
        self._attributes = [AskedAttribute(a.name, a.size, list(a.edges)) for a in merged.attributes]

    def grow(self, expert: int) -> list[GrowingNode]:
        """The tree over what the sites lay out for this expert (over everyone, without negatives to count off)."""
        sample = Sample(positive=self._sample.positive, negatives=self._sample.negatives, expert=expert)

        def count(tree: list[Split], nodes: list[int], counted: list[int]) -> Counts:
            question = AskCrosstables(
                query=self._settings.query,
                target=self._settings.target,
                classes=2,
                attributes=self._attributes,
                tree=tree,
                nodes=nodes,
                sample=sample,
            )
            shape = (len(nodes), question.cells, question.classes)
            return self._run.add_up("tree.crosstables", question, shape, self._templates)

        nodes, _ = grow(
            self.schema,
            count,
            max_depth=self._settings.max_depth,
            min_leaf=self._settings.min_leaf,
            subtract=not any(known.floored for known in self.seen.values()),
        )
        return nodes

    def measure(self, experts: Sequence[list[GrowingNode]]) -> Fraction:
        """The balanced accuracy of these experts' majority over the patients of all sites that take part."""
        question = AskVotes(
            query=self._settings.query,
            target=self._settings.target,
            positive=self._sample.positive,
            attributes=self._attributes,
            experts=[as_voter(expert, self._rule) for expert in experts],
        )
        return balanced_accuracy(self._run.add_up("tree.votes", question, (2, 2), self._templates).tolist())

    def body(self, expert: list[GrowingNode]) -> TreeBody:
        """A grown expert as a model."""
        return finish(self._settings.target, self._settings.query, self.schema, expert)


def as_voter(grown: Sequence[GrowingNode], rule: Rule) -> Voter:
    """A grown tree as a question carries it: where it splits, and where it votes for the positive class."""
    splits = [
        Split(index, node.attribute, node.children)
        for index, node in enumerate(grown)
        if node.attribute is not None
    ]
    sample = grown[0].counts
    return Voter(
        splits, [index for index, node in enumerate(grown) if is_for_positive(node.counts, sample, rule)]
    )
