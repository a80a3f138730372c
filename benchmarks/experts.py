"""Training an expert: the small network beside a plain torch loop of the paper's size, same windows, 20 epochs; and a
private answer for a stay of 96 hours.

python benchmarks/experts.py [DATA]

The paper's public code takes 117 s for an expert; a plain loop in torch, two layers of 200 units, stands in for it.
CPU seconds of one thread. With DATA, the folder of data sets, stays are those of PhysioNet's challenge of 2019 and both
ensembles are compared on held-out stays; without it stays are synthetic and no AUROC is printed.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import concilium as cc
from concilium.cli.demo_patients import make_ward
from concilium.experts.expert import Expert, ExpertEnsemble
from concilium.experts.expert import _train_one as train_one
from concilium.experts.expert_task import ExpertTask, NetworkSettings, PublicRange
from concilium.experts.patient_windows import LaidOut, Windows, lay_out
from concilium.records.clinical_ranges import CLINICAL_RANGES
from concilium.records.series import Series

EXPERTS, EPOCHS, ANSWERS = 12, 20, 20
SMALL = NetworkSettings(epochs=EPOCHS, patience=EPOCHS)
LARGE = NetworkSettings(
    kind="torch-lstm", units=200, layers=2, dropout=0.2, epochs=EPOCHS, rate=0.001, batch=20, patience=EPOCHS
)


def train_plainly(windows: Windows) -> torch.nn.Module:
    """What anybody would write: two LSTM layers of 200 units, dropout, minibatches of 20, clipped gradients, Adam."""

    class Net(torch.nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.core = torch.nn.LSTM(inputs, 200, 2, batch_first=True, dropout=0.2)
            self.out = torch.nn.Linear(200, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.core(x)[0])[..., 0]

    torch.manual_seed(1)
    net = Net(windows.inputs.shape[2])
    optimiser = torch.optim.Adam(net.parameters())
    inputs, targets = torch.from_numpy(windows.inputs), torch.from_numpy(windows.targets).float()
    for _ in range(EPOCHS):
        for first in range(0, len(windows), 20):
            optimiser.zero_grad()
            told, truth = net(inputs[first : first + 20]), targets[first : first + 20]
            known = ~torch.isnan(truth)
            loss = ((told - torch.nan_to_num(truth))[known] ** 2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            optimiser.step()
    return net


def read_stays(data: Path | None) -> tuple[Series, str, list[str]]:
    if data is None:
        return (
            cc.Series.read(make_ward(600, 1), patient="patient", time="hour"),
            "sepsis",
            ["HR", "MAP", "Resp", "Temp"],
        )
    warnings.simplefilter("ignore")
    names = [
        "HR",
        "O2Sat",
        "Temp",
        "SBP",
        "MAP",
        "DBP",
        "Resp",
        "BUN",
        "Creatinine",
        "Glucose",
        "WBC",
        "Platelets",
    ]
    file = data / "sepsis-challenge2019" / "challenge2019_sample2000.parquet"
    series = Series.read(file, time="ICULOS", origin="first", variables=[*names, "SepsisLabel"])
    return series, "SepsisLabel", sorted(names)


def measure_training(laid: LaidOut, patients: list[int]) -> tuple[list[Expert], list[Expert]]:
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"small": [], "torch, plain loop": [], "torch, as an expert": []}
    small, large = [], []
    train_one(SMALL, laid.cut(patients[0]))  # compiled
    for patient in patients:
        windows = laid.cut(patient)
        start = time.process_time()
        small.append(train_one(SMALL, windows))
        seconds["small"].append(time.process_time() - start)
        start = time.process_time()
        train_plainly(windows)
        seconds["torch, plain loop"].append(time.process_time() - start)
        start = time.process_time()
        large.append(train_one(LARGE, windows))
        seconds["torch, as an expert"].append(time.process_time() - start)
    for name, each in seconds.items():
        print(f"{name:22} {1000 * statistics.median(each):9.1f} ms of CPU for an expert, {EPOCHS} epochs")
    ratio = statistics.median(seconds["torch, plain loop"]) / statistics.median(seconds["small"])
    print(f"the small network takes 1/{ratio:.0f} of the plain loop")
    return small, large


def compare(task: ExpertTask, experts: dict[str, list[Expert]], test: Series) -> None:
    from sklearn.metrics import roc_auc_score

    truth = test.stays[task.target] == 1
    for name, own in experts.items():
        settings = SMALL if name == "small" else LARGE
        ensemble = ExpertEnsemble(ExpertTask(task.target, task.variables, network=settings), own)
        print(
            f"{name:22} AUROC {roc_auc_score(truth, ensemble.predict(test)):.3f} of {len(own)} experts, uniform"
        )


def measure_answer(series: Series, target: str, bins: dict[str, list[float]]) -> None:
    """A site with 40 experts, trained before, asked about a stay of 96 hours: what the gate takes for one answer."""
    third = len(series) // 3
    policy = cc.Policy(budget=cc.Budget("unlimited"))
    sites = [
        cc.Site(name, series.take(np.arange(place * third, (place + 1) * third)), policy=policy)
        for place, name in enumerate(("a", "b", "c"))
    ]
    taken: list[float] = []

    class Timed:
        def __init__(self, site: cc.Site) -> None:
            self.site, self.name, self.identity, self.introduce = (
                site,
                site.name,
                site.identity,
                site.introduce,
            )

        def answer(self, message: bytes) -> bytes:
            start = time.perf_counter()
            reply = self.site.answer(message)
            taken.append(time.perf_counter() - start)
            return reply

    house = cc.House([Timed(site) for site in sites])
    experts = cc.Experts(target, epsilon=20, experts=40, bins=bins).fit(house)
    stay = {name: [float(edges[0] + hour % 10) for hour in range(96)] for name, edges in bins.items()}
    experts.ask(stay, whole=True)
    totals = []
    for _ in range(ANSWERS):
        taken.clear()
        experts.ask(stay, whole=True)
        totals.append(
            sum(taken) / 3
        )  # proposal, joining, the answer under masks, opening, ending: of one hospital
    print(
        f"a private answer of 96 steps, 40 experts: {1000 * statistics.median(totals):.1f} ms at a hospital, from the "
        "proposal to the end"
    )


def main() -> None:
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    series, target, names = read_stays(data)
    ranges = tuple(PublicRange(name, CLINICAL_RANGES[name].low, CLINICAL_RANGES[name].high) for name in names)
    task = ExpertTask(target, ranges)
    learn, test = series.take(np.arange(0, len(series), 2)), series.take(np.arange(1, len(series), 2))
    laid = lay_out(learn, task)
    changing = [patient for patient in range(len(laid)) if laid.cut(patient).constant is None][:EXPERTS]
    small, large = measure_training(laid, changing)
    if data is not None:
        compare(task, {"small": small, "torch, as an expert": large}, test)
    bins = {name: [CLINICAL_RANGES[name].low, CLINICAL_RANGES[name].high] for name in names}
    measure_answer(series, target, bins)


if __name__ == "__main__":
    main()
