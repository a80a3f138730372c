"""`DecisionTree`: an ID3 tree grown over all sites of a house, and the model it leaves.

docs/methods.md, 1.1 to 1.8. With `release="exact"` and `"masked"` it equals the tree of the pooled table; what a
release does and does not protect is said on the card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.models.explanation import Explanation
from concilium.models.grid import CUTOFFS
from concilium.models.method import documented
from concilium.models.prediction import AnyPatients
from concilium.models.risk_by_horizon import RiskByHorizon, RiskHorizon, Time
from concilium.models.threshold import PERCENT_LEFT_OUT
from concilium.parameters import MOST_COUNTED, Parameter, choice, flag, number, whole
from concilium.privacy.accounting import Plan
from concilium.protocol.attributes import MOST_EDGES
from concilium.protocol.cohort import MOST_INTEGER_VALUES
from concilium.protocol.held_out import MOST_PERCENT, Part
from concilium.protocol.questions import Conversation, Learned, Partners
from concilium.trees import plain_tree, private_tree
from concilium.trees.body import Told, TreeBody, find_path, settle
from concilium.trees.drawing import draw, to_svg
from concilium.trees.explanation import add_gains, explain, rank, rest_on
from concilium.trees.exports import LeafExpression, to_expressions, to_pmml
from concilium.trees.growing import TreeGrowth
from concilium.trees.private_growing import TreeBudget
from concilium.trees.schemas import FEW_VALUES, TreeMethod

# Of shares those that a hospital adapts (models/recalibration.py), and the classes that are then called.
Adapt = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.intp]]]
PRIVATE_DEPTH = 5
READABLE_DEPTH, READABLE_LEAF = 5, 20
LEAVES_SHOWN = 24
LEAVES_DRAWN = 1000
MOST_DEPTH = 1000


def _read_percent(value: Any) -> float:
    """A share in whole percent, for there to be few ways to divide the same patients."""
    exact: float = number(lambda share: 0 < share < 1)(value)
    percent = round(100 * exact)
    if not 1 <= percent <= MOST_PERCENT or abs(percent / 100 - exact) > 1e-9:
        raise ValueError
    return percent / 100


def _read_depth(value: Any) -> int | str:
    depth: int | str = "all" if value == "all" else whole(0, MOST_DEPTH)(value)
    return depth


MaxDepth = Annotated[
    int | None,
    Parameter(
        f"a whole number from 0 to {MOST_DEPTH}",
        whole(0, MOST_DEPTH),
        "how many questions a patient is asked at most; None: as many as help",
    ),
]
MinLeaf = Annotated[
    int,
    Parameter(
        f"a whole number from 1 to {MOST_COUNTED}",
        whole(1, MOST_COUNTED),
        "no branch with fewer patients than this, over all sites (of an ensemble: over the samples of all sites): "
        "rarer values share a branch, or join the commonest",
    ),
]


GrowthName = Annotated[
    Literal["readable", "id3"],
    Parameter(
        "'readable' or 'id3'",
        choice("readable", "id3"),
        '"readable": every question parts the patients in two, and no leaf is small; "id3": the thesis\' tree, with a '
        "branch for every value",
    ),
]


@documented
@dataclass(eq=False, repr=False)
class DecisionTree(TreeMethod[TreeBody], RiskByHorizon[TreeBody]):
    """`DecisionTree(target="death", query="age > 20").fit(house)`."""

    method: ClassVar[str] = "tree"
    called: ClassVar[str] = "a DecisionTree"
    description: ClassVar[str] = "a decision tree over all sites"
    body_type: ClassVar[type[TreeBody]] = TreeBody
    memory_share: ClassVar[float] = 0.25  # a code of each attribute, and one node, whose text is longer

    _: KW_ONLY
    time: Time = "time"
    at: RiskHorizon = None
    growth: GrowthName = "readable"
    max_depth: Annotated[
        int | Literal["all"] | None,
        Parameter(
            f'a whole number from 0 to {MOST_DEPTH}, or "all"',
            _read_depth,
            f'how many questions a patient is asked at most; "all": as many as help; None: {READABLE_DEPTH}, or of '
            "id3 as many as help",
        ),
    ] = None
    min_leaf: Annotated[
        int | None,
        Parameter(
            f"a whole number from 1 to {MOST_COUNTED}",
            whole(1, MOST_COUNTED),
            "no branch with fewer patients than this, over all sites: rarer values share a branch, or join the "
            f"commonest; None: {READABLE_LEAF}, or of id3 one",
        ),
    ] = None
    cutoffs: Annotated[
        int | None,
        Parameter(
            f"a whole number from 1 to {MOST_EDGES}",
            whole(1, MOST_EDGES),
            "cut numbers at so many even quantiles of a shared histogram; None: at all edges of the `bins`, and "
            f"numbers without bins at {CUTOFFS}",
        ),
    ] = None
    criterion: Annotated[
        str,
        Parameter(
            "'entropy' or 'gain-ratio'",
            choice("entropy", "gain-ratio"),
            '"entropy": the split of least weighted entropy (ID3); "gain-ratio": of best gain ratio (C4.5)',
        ),
    ] = "entropy"
    reduce: Annotated[
        float | None,
        Parameter(
            "a share from 0 to below 1",
            number(lambda share: 0 <= share < 1),
            "auto-reduction: attributes of which at most this share of the patients has another than the commonest "
            "value are counted once and split no node, the root among them; 0 leaves out what is constant and changes "
            "no tree",
        ),
    ] = None
    prune: Annotated[
        float | None,
        Parameter(
            f"a share in whole percent, from 0.01 to {MOST_PERCENT / 100:g}",
            _read_percent,
            "reduced-error pruning: every site holds out this share of its patients, in whole percent (0.3), and a "
            "split that makes no fewer errors on them than none is taken back; None: no pruning",
        ),
    ] = None
    group: Annotated[
        bool,
        Parameter(
            "True or False",
            flag,
            "group the values of attributes, so that one branch may hold several (C4.5)",
        ),
    ] = False

    def check(self) -> None:
        super().check()
        if not self.way_out.bounded:
            return
        if self.max_depth == 0:
            raise StudyError("a private DecisionTree must have a 'max_depth' of 1 or more")
        if self.min_leaf is not None or self.criterion != "entropy" or self.reduce is not None:
            raise StudyError(
                "a private DecisionTree has no 'min_leaf', 'criterion' or 'reduce': it screens attributes and stops "
                "where counts cannot be told from noise"
            )

    def plan_learning(self) -> Plan:
        return private_tree.plan(self) if self.way_out.bounded else plain_tree.plan(self)

    def converse_known(self, partners: Partners) -> Conversation[Learned[TreeBody]]:
        if self.way_out.bounded:
            return private_tree.converse(self, partners)
        return plain_tree.converse(self, partners)

    @property
    def growing(self) -> TreeGrowth:
        """How it is grown, by its parameters."""
        readable = self.growth == "readable"
        depth = READABLE_DEPTH if readable and self.max_depth is None else self.max_depth
        leaf = READABLE_LEAF if readable else 1
        return TreeGrowth(
            None if depth == "all" else depth,
            leaf if self.min_leaf is None else self.min_leaf,
            self.criterion,
            halves=readable,
            groups=self.group,
            most_values=FEW_VALUES if readable else MOST_INTEGER_VALUES,
        )

    @property
    def budget(self) -> TreeBudget:
        depth = self.max_depth if isinstance(self.max_depth, int) else PRIVATE_DEPTH
        pruned, cut = self.prune is not None, self.cutoffs is not None and bool(self.bins)
        return TreeBudget(self.rho_of_fit, depth, cutoffs=cut, prune=pruned)

    @property
    def percent_held_out(self) -> int | None:
        if self.prune is not None:
            return round(100 * self.prune)
        return PERCENT_LEFT_OUT if self.rule.tallied and not self.way_out.bounded else None

    def part(self, *, held: bool) -> Part | None:
        """Those of the patients who are held out for pruning or for the decision, or the others; everyone where nobody
        is."""
        percent = self.percent_held_out
        return None if percent is None else Part(percent=percent, held=held)

    @property
    def attributes_(self) -> list[str]:
        return self.body.asked

    @property
    def depth(self) -> int:
        """The most questions a patient is asked."""
        depth = [0] * len(self.body.nodes)
        for index, node in enumerate(self.body.nodes):
            for child in node.children:
                depth[child] = depth[index] + 1
        return max(depth)

    def predict_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        """For each patient the shares of the classes among the patients of the leaf; columns as in classes_."""
        shares: NDArray[np.float64] = self.body.shares[settle(self.body, self.read(patients))]
        return shares

    def list_risks(self, place: int) -> Sequence[float]:
        levels: list[float] = np.unique(self.body.shares[:, place]).tolist()
        return levels

    def bin_risks(self, patients: AnyPatients, place: int, edges: NDArray[np.float64]) -> NDArray[np.integer]:
        bins = np.searchsorted(
            edges, self.body.shares[:, place], side="right"
        )  # of a node, not of each patient
        placed: NDArray[np.integer] = bins[settle(self.body, self.read(patients))]
        return placed

    def soft_proba(self, patients: AnyPatients) -> NDArray[np.float64]:
        soft: NDArray[np.float64] = self.body.soft_shares[settle(self.body, self.read(patients))]
        return soft

    def soften(self, said: Explanation) -> NDArray[np.float64]:
        return self.body.soften(np.array(said.chances), rest_on(said))

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        known = self.card.dictionary
        path = find_path(self.body, patient, known)
        return explain(self.body, path, patient, dictionary=known, noisy=self.way_out.bounded)

    def importances(self) -> dict[str, float]:
        return rank(add_gains([self.body]))

    def _text(self) -> str:
        """The tree drawn with lines."""
        return draw(self.body.in_words(self.card.dictionary))

    def to_svg(self, *, most_leaves: int | None = None) -> str:
        """The tree as a picture; with `most_leaves`, the branches with fewest patients are left folded."""
        return to_svg(self.body.in_words(self.card.dictionary), most_leaves=most_leaves)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """The tree as a picture for a page, or with nearly all its leaves."""
        return {"tree": self.to_svg(most_leaves=LEAVES_DRAWN if whole else LEAVES_SHOWN)}

    def to_pmml(self, adapt: Adapt | None = None) -> str:
        """The tree as a PMML 4.4 document."""
        return to_pmml(self.body, self._find_told(adapt))

    def to_expressions(self, adapt: Adapt | None = None) -> list[LeafExpression]:
        """One boolean expression, in the style of CQL, for every place where a patient can come to rest."""
        return to_expressions(self.body, self._find_told(adapt))

    def _find_told(self, adapt: Adapt | None) -> Told | None:
        """What the nodes tell as a hospital adapts them; None: as they are."""
        if adapt is None:
            return None
        shares, calls = adapt(self.body.soft_shares)
        return shares.tolist(), calls.tolist()

    def _summary(self) -> str:
        return f"{len(self.body.nodes)} nodes, depth {self.depth}"
