"""Tables 1 and 2 of Bonomi, Gousheh and Fan (2023) remade: LACE groups and readmission from shared codes.

python experiments/code_sharing_cases.py DATA [--runs 25] [--epsilons 1 2.5 5] [--tables 1 2 mimic]

DATA is the folder of data sets (Diabetes 130-US hospitals, ICD-9 at three digits, the 8 categories of section
7332). In each run other patients are auxiliary; the intervals are 95 % over runs.

Table 1. LACE (van Walraven 2010): days in hospital; admission as emergency, urgent or trauma; comorbidity with the
index's own weights from the codes of the stay (categories by pycomorb, after Quan; 250 at three digits counts as
without complications); emergency visits (of the year before: the data have no other). Groups low 0-4, moderate 5-9,
high 10 and more; the truth is the group from the codes as recorded. Once for all stays, once for stays with a
sensitive code, which are all that suppression changes. `mimic` is the same for the MIMIC-III demo at five digits, in
each run half of its 100 patients auxiliary; emergency admissions of half a year before count as visits. `never` are
blocks in which codes that are hidden for what they say never come out.

Table 2. Readmission within 30 days by logistic regression on the codes of a stay, trained on 40 % of the patients
as shared, by suppression, or as recorded when none, half or all of those with a sensitive code opt out; tested on
as many stays with as without readmission, of other patients and as recorded.

Needs pycomorb and scikit-learn: pip install -c constraints.txt -e '.[bench,codes]'
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pycomorb import comorbidity
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from code_sharing import say
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import SharingTest
from concilium.codes.taxonomy import Taxonomy
from concilium.records.sequences import Sequences
from diabetes_codes import list_diagnoses, read_stays

# Points of one condition in LACE; from 4 on they count as 5. Peptic ulcers and hemiplegia are not in it.
COMORBIDITY = {
    "Myocardial infarction": 1,
    "Cerebrovascular disease": 1,
    "Peripheral vascular disease": 1,
    "Diabetes without chronic complication": 1,
    "Congestive heart failure": 2,
    "Diabetes with chronic complication": 2,
    "Chronic pulmonary disease": 2,
    "Mild liver disease": 2,
    "Renal disease": 2,
    "Any malignancy, including lymphoma and leukemia, except malignant neoplasm of skin": 2,
    "Dementia": 3,
    "Rheumatic disease": 3,
    "AIDS/HIV": 4,
    "Moderate or severe liver disease": 4,
    "Metastatic solid tumor": 6,
}
ACUTE = {"1", "2", "7"}
GROUPS = ("low", "moderate", "high")
HIV = "AIDS/HIV"
EVENTS = 150  # nobody in Diabetes 130 has more
BARE = {"gamma": None, "gamma_max": None}


def find_conditions(codes: Iterable[str]) -> dict[str, set[str]]:
    """The conditions of LACE that each code stands for."""
    names = sorted(codes)
    table = pd.DataFrame(
        {"id": names, "code": ["250.0" if code == "250" else code for code in names], "age": 0}
    )
    found = comorbidity("charlson", table, icd_version="icd9", implementation="quan", return_categories=True)
    rows = pd.DataFrame(found[0] if isinstance(found, tuple) else found)
    if "id" not in rows:
        rows = rows.reset_index()
    return {row["id"]: {name for name in COMORBIDITY if row[name]} for row in rows.to_dict("records")}


class Lace:
    """The index of every stay of a population, from its codes and what else is known of it."""

    def __init__(self, stays: pd.DataFrame, codes: Iterable[str]) -> None:
        days = stays["time_in_hospital"].astype(int).to_numpy()
        length = np.select([days < 1, days <= 3, days <= 6, days <= 13], [0, days, 4, 5], 7)
        acute = 3 * stays["admission_type_id"].isin(ACUTE).to_numpy()
        self._rest = length + acute + np.minimum(stays["number_emergency"].astype(int).to_numpy(), 4)
        place = {name: number for number, name in enumerate(COMORBIDITY)}
        self._conditions = {
            code: [place[name] for name in names] for code, names in find_conditions(codes).items()
        }
        self._weights = np.array(list(COMORBIDITY.values()))

    def group(
        self, sequences: Sequences, stays: NDArray[np.intp], changed: dict[str, bool] | None = None
    ) -> NDArray[np.intp]:
        """The group of each stay, where event i is of stay `stays[i]`; as if all, or none, had a condition."""
        present = np.zeros((len(self._rest), len(COMORBIDITY)), dtype=bool)
        for number, label in enumerate(sequences.labels):
            having = stays[sequences.codes == number]
            for condition in self._conditions.get(label, ()):
                present[having, condition] = True
        for name, there in (changed or {}).items():
            present[:, list(COMORBIDITY).index(name)] = there
        points = present @ self._weights
        return np.digitize(self._rest + np.where(points >= 4, 5, points), [5, 10])


def bound_moderate(
    lace: Lace, sequences: Sequences, rows: NDArray[np.intp], chosen: NDArray[np.bool_], epsilon: float
) -> tuple[float, float]:
    """What HIV, the one sensitive code that LACE counts, does to the moderate group: how many of it are lost with HIV,
    and how many are expected to leave it by a false HIV entry at the least rate that epsilon allows.

    A mechanism that shows HIV with probability s shows it for any other code with s e^-epsilon at least. So whoever
    reads entries as they are misses at least (1 - s) times the one and s times the other: no fewer than the smaller.
    """
    with_hiv, truth, without = (
        lace.group(sequences, rows, changed) for changed in ({HIV: True}, None, {HIV: False})
    )
    moderate = chosen & (truth == GROUPS.index("moderate"))
    false = -np.expm1(np.bincount(rows, minlength=len(truth)) * np.log1p(-math.exp(-epsilon)))
    return float((moderate & (without != truth)).sum()), float(false[moderate & (with_hiv != truth)].sum())


def number_stays(stays: pd.DataFrame, sequences: Sequences) -> NDArray[np.intp]:
    """The row of the stay of each event: patients and days are in the same order in both."""
    counts = stays.groupby("patient_nbr", sort=False).size()
    first = np.concatenate([[0], np.cumsum(counts.to_numpy())])[:-1]
    start = dict(zip(counts.index, first, strict=True))
    starts = np.array([start[patient] for patient in sequences.patients])
    return (starts[sequences.owners] + sequences.times).astype(np.intp)


def make_mechanisms(fitted: CodeSharing, epsilons: Iterable[str]) -> dict[str, CodeSharing]:
    chosen = {"suppression": fitted.refit(mechanism="suppression", **BARE)}
    for epsilon in epsilons:
        chosen[f"blocks {epsilon}"] = fitted.refit(epsilon=epsilon)
        chosen[f"never {epsilon}"] = fitted.refit(epsilon=epsilon, show_hidden=False)
        chosen[f"umaxrr {epsilon}"] = fitted.refit(epsilon=epsilon, mechanism="umaxrr", **BARE)
    return chosen


def remake_table_1(
    stays: pd.DataFrame,
    everyone: Sequences,
    epsilons: list[str],
    runs: int,
    taxonomy: Taxonomy | None = None,
    share: float = 0.8,
) -> None:
    taxonomy = taxonomy or Taxonomy.icd9(digits=3)
    counts: dict[tuple[str, str, str], list[tuple[int, int, int, int]]] = defaultdict(list)
    attacks: dict[str, list[float | None]] = defaultdict(list)
    bounds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in range(runs):
        auxiliary = np.random.default_rng(run).random(len(everyone)) < share
        events = max(EVENTS, int(everyone.counts.max()))  # so that no stay is cut
        fitted = CodeSharing(taxonomy, within=math.inf, max_events=events).fit(everyone.take(auxiliary))
        test = everyone.take(~auxiliary)
        ours = stays[stays["patient_nbr"].isin(set(test.patients))].reset_index(drop=True)
        rows = number_stays(ours, test)
        lace = Lace(ours, fitted.taxonomy.codes)
        recorded = test.rename(fitted.taxonomy.normalise_all(test.labels))
        truth = lace.group(recorded, rows)
        sensitive = np.isin(
            recorded.codes, [i for i, c in enumerate(recorded.labels) if c in fitted.sensitive]
        )
        touched = np.zeros(len(ours), dtype=bool)
        touched[rows[sensitive]] = True
        for epsilon in epsilons:
            bounds[epsilon].append(bound_moderate(lace, recorded, rows, touched, float(epsilon)))
        bench = SharingTest(fitted, test)
        for name, sharing in make_mechanisms(fitted, epsilons).items():
            shared = sharing.share(test)
            found = lace.group(shared, rows)
            attacks[name].append(bench.measure(sharing).largest)
            for where, chosen in (("all stays", np.ones(len(ours), dtype=bool)), ("sensitive", touched)):
                for group, label in enumerate(GROUPS):
                    is_so, said = truth[chosen] == group, found[chosen] == group
                    counts[name, where, label].append(
                        (
                            int((is_so & said).sum()),
                            int((is_so & ~said).sum()),
                            int((~is_so & said).sum()),
                            int((~is_so & ~said).sum()),
                        )
                    )
    for where in ("all stays", "sensitive"):
        print(f"\nTable 1, {where}: LACE groups, mean of {runs} runs")
        print(f"{'':14}{'MAP':>16}  {'group':10}{'TP':>9}{'FN':>9}{'FP':>9}{'TN':>9}")
        for name in attacks:
            for label in GROUPS:
                figures = np.mean(counts[name, where, label], axis=0)
                shown = (name, say(attacks[name])) if label == GROUPS[0] else ("", "")
                print(
                    f"{shown[0]:14}{shown[1]:>16}  {label:10}"
                    + "".join(f"{figure:9.1f}" for figure in figures)
                )

    print("\nmoderate, stays with a sensitive code: lost with HIV; moved by false HIV entries at e^-epsilon")
    for epsilon, found in bounds.items():
        lost, moved = np.mean(found, axis=0)
        print(f"{epsilon:>8} {lost:8.1f}{moved:8.1f}")


def read_mimic_stays(data: Path) -> tuple[pd.DataFrame, Sequences]:
    """The stays of the MIMIC-III demo in the form of Diabetes 130's, and their codes; the day is the stay's number."""
    folder = data / "mimic3-demo"
    table = pd.read_csv(folder / "ADMISSIONS.csv.gz", dtype=str)
    begin, end = (pd.to_datetime(table[name]) for name in ("admittime", "dischtime"))
    stays = pd.DataFrame({"patient_nbr": table["subject_id"], "hadm_id": table["hadm_id"], "begin": begin})
    stays["time_in_hospital"] = np.maximum((end - begin).dt.days, 0)
    stays["acute"] = table["admission_type"].isin(["EMERGENCY", "URGENT"])
    stays["admission_type_id"] = np.where(stays["acute"], "1", "3")
    stays = stays.sort_values(["patient_nbr", "begin"], kind="stable").reset_index(drop=True)
    stays["day"] = stays.groupby("patient_nbr").cumcount()
    half = pd.Timedelta(days=183)
    visits = []
    for patient, begun in zip(stays["patient_nbr"], stays["begin"], strict=True):
        own = stays[(stays["patient_nbr"] == patient) & stays["acute"]]["begin"]
        visits.append(int(((own < begun) & (own >= begun - half)).sum()))
    stays["number_emergency"] = visits
    codes = pd.read_csv(folder / "DIAGNOSES_ICD.csv.gz", dtype=str).dropna(subset="icd9_code")
    codes = codes.merge(stays[["hadm_id", "patient_nbr", "day"]], on="hadm_id").sort_values("row_id")
    lists: dict[str, list[tuple[float, str]]] = {patient: [] for patient in stays["patient_nbr"]}
    for patient, day, code in zip(codes["patient_nbr"], codes["day"], codes["icd9_code"], strict=True):
        lists[patient].append((float(day), code))
    return stays, Sequences(lists.values(), patients=list(lists))


def encode(sequences: Sequences, stays: NDArray[np.intp], rows: int, columns: dict[str, int]) -> csr_matrix:
    """A row for each stay, a column for each code."""
    table = np.array([columns.get(label, -1) for label in sequences.labels])
    codes = table[sequences.codes]
    kept = codes >= 0
    matrix = csr_matrix((np.ones(kept.sum()), (stays[kept], codes[kept])), shape=(rows, len(columns)))
    matrix.data[:] = 1.0
    return matrix


def judge(
    matrix: csr_matrix, labels: NDArray[np.bool_], tested: csr_matrix, truth: NDArray[np.bool_]
) -> tuple[float, float, float]:
    """Accuracy, recall and AUC of a model that learns from one table and is tested on another."""
    model = LogisticRegression(C=0.1, max_iter=300, class_weight="balanced").fit(matrix, labels)
    scores = model.decision_function(tested)
    said = scores > 0
    return float((said == truth).mean()), float(said[truth].mean()), float(roc_auc_score(truth, scores))


def remake_table_2(stays: pd.DataFrame, everyone: Sequences, epsilons: list[str], runs: int) -> None:
    figures: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for run in range(runs):
        rng = np.random.default_rng(run)
        part = rng.random(len(everyone))
        fitted = CodeSharing(within=math.inf, max_events=EVENTS).fit(everyone.take(part < 0.4))
        taxonomy = fitted.taxonomy
        columns = {code: number for number, code in enumerate((*taxonomy.codes, taxonomy.root))}
        train, test = everyone.take((part >= 0.4) & (part < 0.8)), everyone.take(part >= 0.8)
        train_stays, test_stays = (
            stays[stays["patient_nbr"].isin(set(one.patients))].reset_index(drop=True)
            for one in (train, test)
        )
        outcomes, truth = ((one["readmitted"] == "<30").to_numpy() for one in (train_stays, test_stays))
        positive = np.flatnonzero(truth)
        balanced = np.concatenate(
            [positive, rng.choice(np.flatnonzero(~truth), len(positive), replace=False)]
        )
        rows, test_rows = number_stays(train_stays, train), number_stays(test_stays, test)
        recorded, test = (one.rename(taxonomy.normalise_all(one.labels)) for one in (train, test))
        tested = encode(test, test_rows, len(test_stays), columns)[balanced]
        is_so = truth[balanced]

        for name, sharing in make_mechanisms(fitted, epsilons).items():
            shared = encode(sharing.share(train), rows, len(train_stays), columns)
            figures[name].append(judge(shared, outcomes, tested, is_so))
        sensitive = np.isin(
            recorded.codes, [i for i, c in enumerate(recorded.labels) if c in fitted.sensitive]
        )
        having = np.unique(recorded.owners[sensitive])
        whole = encode(recorded, rows, len(train_stays), columns)
        owner_of = {patient: number for number, patient in enumerate(train.patients)}
        owners = np.array([owner_of[patient] for patient in train_stays["patient_nbr"]])
        for share in (0, 0.5, 1):
            leaving = rng.choice(having, round(share * len(having)), replace=False)
            staying = ~np.isin(owners, leaving)
            figures[f"opt-out {share:.0%}"].append(judge(whole[staying], outcomes[staying], tested, is_so))
    print(
        f"\nTable 2: readmission within 30 days, {runs} runs\n{'':14}{'accuracy':>16}{'recall':>16}{'AUC':>16}"
    )
    for name, found in figures.items():
        print(f"{name:14}" + "".join(f"{say(column):>16}" for column in zip(*found, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--epsilons", nargs="+", default=["1", "2.5", "5"])
    parser.add_argument("--tables", nargs="+", choices=["1", "2", "mimic"], default=["1", "2", "mimic"])
    options = parser.parse_args()
    if "mimic" in options.tables:
        stays, everyone = read_mimic_stays(options.data)
        print(everyone)
        taxonomy = Taxonomy.icd9(digits=5, headings="keep")
        remake_table_1(stays, everyone, options.epsilons, options.runs, taxonomy, 0.5)
    if options.tables == ["mimic"]:
        return
    stays = read_stays(options.data)
    everyone = list_diagnoses(stays)
    print(everyone)
    if "1" in options.tables:
        remake_table_1(stays, everyone, options.epsilons, options.runs)
    if "2" in options.tables:
        remake_table_2(stays, everyone, options.epsilons, options.runs)


if __name__ == "__main__":
    main()
