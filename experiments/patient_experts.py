"""Patient experts on intensive-care stays: tables 3 and 4 and figures 2 and 3 of Schamoni, Hagmann and Riezler
(2022) remade on other data, and a student at a total epsilon of 8.

python experiments/patient_experts.py DATA [--stays 1275] [--runs 5] [--students] [--leakage [--splits 4] [--epochs 30]]

DATA is the folder of data sets; what is read is PhysioNet's challenge of 2019 (40,336 stays at two hospitals, hourly).
The paper's patients are closed. As there, stays under 16 hours and stays with sepsis on admission are left out (here:
with onset in the first 30 hours, 48 in the paper; the challenge's label is there from six hours before onset). Of the
rest as many as in the paper are drawn by a hash of the id: 296 with sepsis and 979 without. They are sorted, with
sepsis by onset, others by length of stay, and dealt to four partitions A to D in groups of four. Two partitions train,
one validates (and, without its labels, stands for public stays), one tests, in turn.

AUROC at h hours before onset: all steps up to there of patients with sepsis, and all steps of others; positive is the
step h hours (or the steps of an interval) before onset. "ensemble-w" knows the truth of earlier steps. Accuracy loss is
1 - (2 AUROC of the private model - 1)/(2 AUROC of the exact one - 1), with Laplace noise of scale B/(N e) on each step
by itself, as in the paper (so that each step costs e), N = 1 for the full model. Leakage is
Yeom's attack on the mean squared errors of stays, of all training patients and of test patients, with 1,000 resamples;
an ensemble's own members are chosen by their outcome, and would be told from others by that alone. The
student has one total (8, 1e-5), the noise of three hospitals of which one may collude, and learns from every second
hour of the public stays.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import t as t_distribution
from scipy.stats import ttest_ind

from concilium.evaluation.attacks import measure_threshold_attack
from concilium.evaluation.horizons import HORIZONS, ScoredStays, measure_horizons
from concilium.experts.expert import ExpertEnsemble, average, train_experts
from concilium.experts.expert_answers import find_course_deviation
from concilium.experts.expert_task import ExpertTask, NetworkSettings, PublicRange
from concilium.experts.experts import STUDENT
from concilium.experts.network import Network, SmallLstm, Weights, _fit
from concilium.experts.patient_windows import LaidOut, find_onsets, lay_out
from concilium.experts.site_experts import ExpertGrowth, find_covariance, weigh_by_history, weigh_optimally
from concilium.experts.student import find_features, smooth, teach_network, tell
from concilium.experts.torch_lstm import TorchLstm, load_torch
from concilium.privacy.accounting import rho_for_epsilon
from concilium.records.clinical_ranges import CLINICAL_RANGES
from concilium.records.series import Series
from concilium.records.series_description import OddValues

Reals = NDArray[np.float64]

FILE = Path("sepsis-challenge2019") / "challenge2019_all.parquet"
VITALS = ("HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp")
LABORATORY = (
    *(
        "BaseExcess",
        "HCO3",
        "FiO2",
        "pH",
        "PaCO2",
        "BUN",
        "Calcium",
        "Chloride",
        "Creatinine",
        "Glucose",
        "Lactate",
    ),
    *(
        "Magnesium",
        "Phosphate",
        "Potassium",
        "Bilirubin_total",
        "Hct",
        "Hgb",
        "PTT",
        "WBC",
        "Platelets",
        "Age",
    ),
)
TARGET, BEFORE_ONSET = "SepsisLabel", 6
SEPTIC_SHARE = 296 / 1275
SHORTEST, EARLIEST = 16, 24
EPSILONS = [10.0**power for power in range(-3, 4)]
FULL = NetworkSettings(units=32, rate=0.005, batch=20)
FULL_ROUNDS = 6
PAPER_SIZES = {"models": "40.50", "without sepsis": "16.75", "with sepsis": "23.75"}
PAPER = {
    "full model": ("70.80", "69.48", "67.99", "68.75", "67.13"),
    "ensemble-u": ("76.15", "73.47", "70.51", "72.12", "70.77"),
    "ensemble-w": ("78.13", "74.61", "70.67", "72.77", "70.63"),
}

console = Console(width=110)


def choose_stays(data: Path, stays: int) -> tuple[list[str], list[str]]:
    """The ids with and without sepsis, in order of onset and of length of stay."""
    query = f"""
        SELECT patient, count(*) AS hours, min(CASE WHEN {TARGET} = 1 THEN ICULOS END) - min(ICULOS) AS onset
        FROM '{data / FILE}' GROUP BY patient
    """
    rows = duckdb.sql(query).fetchall()
    septic = [(onset, patient) for patient, _, onset in rows if onset is not None and onset >= EARLIEST]
    others = [(hours, patient) for patient, hours, onset in rows if onset is None and hours >= SHORTEST]
    console.print(f"{len(septic)} stays with sepsis and {len(others)} without fit; of {len(rows)} in all")
    count = round(stays * SEPTIC_SHARE)
    chosen = []
    for listed, size in ((septic, count), (others, stays - count)):
        drawn = sorted(listed, key=lambda one: hashlib.sha256(one[1].encode()).digest())[:size]
        chosen.append([patient for _, patient in sorted(drawn)])
    return chosen[0], chosen[1]


def deal(ids: list[str]) -> list[list[str]]:
    """Sorted patients in groups of four, each group to A, B, C and D in an order of its own."""
    partitions: list[list[str]] = [[], [], [], []]
    for first in range(0, len(ids), 4):
        group = ids[first : first + 4]
        shuffled = sorted(group, key=lambda one: hashlib.sha256(f"deal {one}".encode()).digest())
        for place, patient in enumerate(shuffled):
            partitions[place].append(patient)
    return partitions


def make_task() -> ExpertTask:
    names = sorted((*VITALS, *LABORATORY))
    ranges = tuple(PublicRange(name, CLINICAL_RANGES[name].low, CLINICAL_RANGES[name].high) for name in names)
    return ExpertTask(TARGET, ranges)


@dataclass(frozen=True, eq=False)
class Split:
    """One turn: experts of the training patients, validation and test stays."""

    number: int
    experts: ExpertEnsemble
    training: LaidOut
    validation: LaidOut
    test: LaidOut
    onsets: Reals


def make_splits(data: Path, stays: int) -> Iterator[Split]:
    septic, others = choose_stays(data, stays)
    parts = [one + other for one, other in zip(deal(septic), deal(others), strict=True)]
    warnings.simplefilter("ignore", OddValues)
    everyone = [patient for part in parts for patient in part]
    series = Series.read(
        data / FILE,
        time="ICULOS",
        origin="first",
        variables=[*VITALS, *LABORATORY, TARGET],
        patients=everyone,
    )
    task = make_task()
    laid = lay_out(series, task)
    start = time.process_time()
    experts = train_experts(laid, range(len(series)), workers=1)
    seconds = time.process_time() - start
    trained = sum(expert.weights is not None for expert in experts)
    console.print(f"{len(experts)} experts, {trained} of them networks, in {seconds:.1f} s of one core")
    bounds = np.cumsum([0, *map(len, parts)])
    rows = [np.arange(bounds[place], bounds[place + 1]) for place in range(4)]
    for number in range(4):
        train = np.concatenate([rows[number], rows[(number + 1) % 4]])
        chosen = [series.take(one) for one in (train, rows[(number + 2) % 4], rows[(number + 3) % 4])]
        ensemble = ExpertEnsemble(task, [experts[row] for row in train])
        stays_of = [lay_out(one, task) for one in chosen]
        yield Split(number, ensemble, *stays_of, find_onsets(chosen[2], TARGET) + BEFORE_ONSET)


def measure(severity: Reals, split: Split) -> dict[str, float]:
    """AUROC at each time before onset, against all hours, as in the paper."""
    found = measure_horizons(ScoredStays(severity, split.test.starts, split.onsets), matched=False, draws=0)
    return {name: one.value for name, one in found.items() if one is not None}


def train_full(split: Split) -> tuple[Reals, Reals]:
    """One network of all training patients, stopped by validation patients; what it says of the test stays, and of its
    own."""
    task = split.training.task
    windows, _, _ = split.training.gather(np.arange(len(split.training)))
    held, _, _ = split.validation.gather(np.arange(len(split.validation)))
    network = SmallLstm(FULL, len(task.variables))
    weights = network.begin()
    best, best_error = weights.copy(), np.inf
    for _ in range(FULL_ROUNDS):
        inputs, targets, lengths = windows.inputs, windows.targets, windows.lengths
        _fit(weights, inputs, targets, lengths, FULL.units, FULL.batch, 2, FULL.rate, FULL.clip, 0, 9, 0.0)
        error = float(np.nanmean((network.run([{"weights": weights}], held)[0] - held.targets) ** 2))
        if error >= best_error:
            break
        best, best_error = weights.copy(), error
    learned = {"weights": best}
    return run_full(network, learned, split.test), run_full(network, learned, split.training)


def run_full(network: Network, learned: Weights, laid: LaidOut) -> Reals:
    windows, places, cells = laid.gather(np.arange(len(laid)))
    told = np.empty(len(laid.values))
    told[cells] = network.run([learned], windows)[0].ravel()[places]
    return np.clip(told, 0, laid.task.bound)


PAPER_NETWORK = NetworkSettings(kind="torch-lstm", units=200, layers=2, dropout=0.2, rate=0.001, batch=20)


def train_paper(split: Split, epochs: int) -> dict[str, tuple[Reals, Reals]]:
    """The paper's network of all training patients, "stopped" where validation patients are told best and after all
    `epochs`; what each says of the test stays, and of its own."""
    torch = load_torch()
    torch.manual_seed(1)
    network = TorchLstm(PAPER_NETWORK, len(split.training.task.variables))
    core, out = network._build()
    windows, _, _ = split.training.gather(np.arange(len(split.training)))
    held, _, _ = split.validation.gather(np.arange(len(split.validation)))
    targets = torch.from_numpy(windows.targets).float()
    optimiser = torch.optim.Adam([*core.parameters(), *out.parameters()], lr=PAPER_NETWORK.rate)
    order, best_error = np.random.default_rng(1), np.inf
    said: dict[str, tuple[Reals, Reals]] = {}
    for epoch in range(epochs):
        core.train()
        shuffled = order.permutation(len(windows))
        for first in range(0, len(windows), PAPER_NETWORK.batch):
            part = shuffled[first : first + PAPER_NETWORK.batch]
            optimiser.zero_grad()
            miss = out(core(torch.from_numpy(windows.inputs[part]))[0])[..., 0] - targets[part]
            (miss[~torch.isnan(miss)] ** 2).mean().backward()
            torch.nn.utils.clip_grad_norm_([*core.parameters(), *out.parameters()], PAPER_NETWORK.clip)
            optimiser.step()
        learned = {
            f"core.{name}": value.numpy().astype(np.float64) for name, value in core.state_dict().items()
        }
        learned |= {
            f"out.{name}": value.numpy().astype(np.float64) for name, value in out.state_dict().items()
        }
        error = float(np.nanmean((network.run([learned], held)[0] - held.targets) ** 2))
        if error < best_error or epoch == epochs - 1:
            pair = run_full(network, learned, split.test), run_full(network, learned, split.training)
            said["stopped" if error < best_error else "after all epochs"] = pair
        best_error = min(best_error, error)
    return {"stopped": said["stopped"], "after all epochs": said.get("after all epochs", said["stopped"])}


def run_leakage(splits: Iterator[Split], epochs: int, dice: np.random.Generator) -> None:
    """Figure 2 with the paper's network of 2 x 200 units, with and without early stopping."""
    found: dict[str, dict[float, list[float]]] = {}
    for split in splits:
        for name, (test, own) in train_paper(split, epochs).items():
            for epsilon in EPSILONS:
                scale = split.training.task.bound / epsilon
                inside = find_losses(own + dice.laplace(0, scale, len(own)), split.training)
                outside = find_losses(test + dice.laplace(0, scale, len(test)), split.test)
                advantage = measure_threshold_attack(inside, outside).advantage.value
                found.setdefault(name, {}).setdefault(epsilon, []).append(advantage)
            console.print(
                f"split {split.number}, {name}: {found[name][EPSILONS[-1]][-1]:+.2f} at the largest epsilon"
            )
    table = Table("Figure 2, 2 x 200 units: leakage, median of splits", *(f"{one:g}" for one in EPSILONS))
    for name, by_epsilon in found.items():
        table.add_row(name, *(f"{statistics.median(by_epsilon[one]):+.2f}" for one in EPSILONS))
    console.print(table)


def find_losses(severity: Reals, laid: LaidOut) -> Reals:
    """The mean squared error of each stay, over the steps whose truth is known."""
    owners = np.repeat(np.arange(len(laid)), np.diff(laid.starts))
    known = ~np.isnan(laid.severity)
    squares = (severity - laid.severity)[known] ** 2
    sums = np.bincount(owners[known], squares, minlength=len(laid))
    losses: Reals = sums / np.maximum(np.bincount(owners[known], minlength=len(laid)), 1)
    return losses


@dataclass
class Outcome:
    """What one split showed."""

    sizes: tuple[int, int, int]
    auroc: dict[str, dict[str, float]]
    losses: dict[str, dict[float, dict[str, float]]]
    leakage: dict[str, dict[float, float]]
    students: dict[str, list[float]]


def run_split(split: Split, runs: int, dice: np.random.Generator) -> Outcome:
    task, everyone = split.experts.task, split.experts
    told, answers = everyone.tell(split.validation), everyone.tell(split.test)
    covariance = find_covariance(told, split.validation.severity)
    members = ExpertGrowth(covariance, everyone.septic).grow().members
    grown = answers[members]
    weights = weigh_by_history(grown, split.test.severity, split.test.starts)
    full, full_own = train_full(split)
    severities = {
        "full model": full,
        "ensemble-u": average(grown),
        "ensemble-w": average(grown, weights),
        "ensemble-o": average(grown, weigh_optimally(covariance[np.ix_(members, members)])),
    }
    exact = {name: measure(severity, split) for name, severity in severities.items()}
    trained = {"full model": full_own, "ensemble-u": average(everyone.take(members).tell(split.training))}
    losses: dict[str, dict[float, dict[str, float]]] = {}
    leakage: dict[str, dict[float, float]] = {}
    for name, size in (("full model", 1), ("ensemble-u", len(members))):
        losses[name], leakage[name] = {}, {}
        for epsilon in EPSILONS:
            scale = task.bound / (size * epsilon)
            said = trained[name]
            inside = find_losses(said + dice.laplace(0, scale, len(said)), split.training)
            outside = find_losses(severities[name] + dice.laplace(0, scale, answers.shape[1]), split.test)
            leakage[name][epsilon] = measure_threshold_attack(inside, outside).advantage.value
            noisy = [
                measure(severities[name] + dice.laplace(0, scale, answers.shape[1]), split)
                for _ in range(runs)
            ]
            losses[name][epsilon] = {
                at: 1 - (2 * statistics.fmean(one[at] for one in noisy) - 1) / (2 * exact[name][at] - 1)
                for at in HORIZONS
            }
    students = run_students(split, told, answers, exact, runs, dice)
    septic = int(everyone.septic[members].sum())
    sizes = (len(members), len(members) - septic, septic)
    return Outcome(sizes, exact, losses, leakage, students)


def run_students(
    split: Split,
    told: NDArray[np.float32],
    answers: NDArray[np.float32],
    exact: dict[str, dict[str, float]],
    runs: int,
    dice: np.random.Generator,
) -> dict[str, list[float]]:
    """AUROC of students of unselected experts, several draws of noise each, and of these experts themselves (exact)."""
    students: dict[str, list[float]] = {}
    features = find_features(split.validation)
    for name, size in (("200", 200), ("all", len(told))):
        drawn = dice.permutation(len(told))[:size]
        unselected = exact[f"unselected, {name}"] = measure(average(answers[drawn]), split)
        labels = average(told[drawn])
        for _ in range(runs):
            found = measure(run_student(split, features, labels, len(drawn), dice), split)
            for at in HORIZONS:
                students.setdefault(f"{name} {at}", []).append(found[at])
            gap = statistics.fmean(found[at] - unselected[at] for at in HORIZONS)
            students.setdefault(f"{name} gap", []).append(gap)
    return students


def run_student(
    split: Split, features: Reals, labels: Reals, experts: int, dice: np.random.Generator
) -> Reals:
    """What a student of the validation stays says of the test stays, at (8, 1e-5) with the noise of three hospitals."""
    task, starts = split.experts.task, split.validation.starts
    steps = np.arange(len(labels)) - np.repeat(starts[:-1], np.diff(starts))
    asked = np.flatnonzero(steps % 2 == 1)
    deviation = find_course_deviation(
        experts, task.bound, len(asked), rho_for_epsilon(8, "1e-5")
    ) * math.sqrt(3 / 2)
    noisy = labels[asked] + dice.normal(0, deviation, len(asked))
    targets = smooth(features, asked, noisy, deviation, task.bound)
    return tell(teach_network(split.validation, targets, STUDENT), split.test)


def say_mean(values: list[float]) -> str:
    """The mean over splits and its 95 % interval by Student's t: splits share patients, so that it is a guide."""
    mean, half = statistics.fmean(values), 0.0
    if len(values) > 1:
        half = (
            float(t_distribution.ppf(0.975, len(values) - 1))
            * statistics.stdev(values)
            / math.sqrt(len(values))
        )
    return f"{mean:.1f} ({mean - half:.1f} to {mean + half:.1f})"


def say_tables(outcomes: list[Outcome]) -> None:
    table = Table(
        "Table 3: grown ensembles", *(f"split-{place}" for place in range(len(outcomes))), "mean", "paper"
    )
    for place, name in enumerate(PAPER_SIZES):
        sizes = [float(outcome.sizes[place]) for outcome in outcomes]
        table.add_row(name, *(f"{one:.0f}" for one in sizes), say_mean(sizes), PAPER_SIZES[name])
    console.print(table)
    table = Table("Table 4: AUROC before onset (95 % interval over splits)", *HORIZONS)
    for name in outcomes[0].auroc:
        cells = []
        for at in HORIZONS:
            values = [100 * outcome.auroc[name][at] for outcome in outcomes]
            full = [100 * outcome.auroc["full model"][at] for outcome in outcomes]
            differs = name != "full model" and ttest_ind(values, full).pvalue < 0.05
            cells.append(f"{'*' if differs else ''}{say_mean(values)}")
        table.add_row(name, *cells)
        if name in PAPER:
            table.add_row("  the paper", *PAPER[name], style="dim")
    console.print(table)
    table = Table(
        "Figure 2: leakage (TPR - FPR) over epsilon, median of splits", *(f"{one:g}" for one in EPSILONS)
    )
    for name in ("full model", "ensemble-u"):
        medians = [statistics.median(one.leakage[name][epsilon] for one in outcomes) for epsilon in EPSILONS]
        table.add_row(name, *(f"{one:+.2f}" for one in medians))
    console.print(table)
    table = Table("Figure 3: accuracy loss over epsilon, median of splits", *(f"{one:g}" for one in EPSILONS))
    for name in ("full model", "ensemble-u"):
        for at in HORIZONS:
            medians = [
                statistics.median(outcome.losses[name][epsilon][at] for outcome in outcomes)
                for epsilon in EPSILONS
            ]
            table.add_row(f"{name}, {at}", *(f"{one:.2f}" for one in medians))
    console.print(table)
    say_students([outcome.students for outcome in outcomes])


def say_students(found: list[dict[str, list[float]]]) -> None:
    table = Table("Student at (8, 1e-5), AUROC", *HORIZONS, "beside its ensemble")
    for size in ("200", "all"):
        cells = []
        for at in HORIZONS:
            values = [100 * one for students in found for one in students[f"{size} {at}"]]
            cells.append(f"{statistics.fmean(values):.2f} ({statistics.stdev(values):.2f})")
        gaps = [one for students in found for one in students[f"{size} gap"]]
        span = f"{statistics.fmean(gaps):+.4f} ({min(gaps):+.3f} to {max(gaps):+.3f})"
        table.add_row(f"{size} experts", *cells, span)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--stays", type=int, default=1275)
    parser.add_argument("--runs", type=int, default=5, help="draws of noise")
    parser.add_argument("--students", action="store_true", help="the last table only")
    parser.add_argument(
        "--leakage", action="store_true", help="figure 2 with the paper's network only, in torch"
    )
    parser.add_argument("--splits", type=int, default=4, help="of --leakage: so many of the four")
    parser.add_argument(
        "--epochs", type=int, default=30, help="of --leakage: passes over the training patients"
    )
    arguments = parser.parse_args()
    dice = np.random.default_rng(1)
    start = time.process_time()
    splits = make_splits(arguments.data, arguments.stays)
    if arguments.leakage:
        run_leakage(islice(splits, arguments.splits), arguments.epochs, dice)
        return
    shown = track(splits, "splits", total=4)
    if arguments.students:
        found = []
        for split in shown:
            told, answers = split.experts.tell(split.validation), split.experts.tell(split.test)
            found.append(run_students(split, told, answers, {}, arguments.runs, dice))
        say_students(found)
    else:
        say_tables([run_split(split, arguments.runs, dice) for split in shown])
    console.print(f"{time.process_time() - start:.0f} s of one core")


if __name__ == "__main__":
    main()
