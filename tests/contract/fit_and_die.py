"""Fit a method with a journal and ledgers on disk, in a process that is killed in a round.

Round 0: nobody is killed. The model is saved as FOLDER/model.json when the fit ends.
"""

from __future__ import annotations

import os
import signal

import concilium as cc
from concilium.registry import METHODS, load
from contract.patients import ROWS, make, open_site


def fit(folder, method, last=0):
    rounds = 0

    def count(text):
        nonlocal rounds
        rounds += 1
        if rounds == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sites = [open_site(name, rows, ledger=folder / f"{name}.ledger") for name, rows in ROWS.items()]
    house = cc.House(sites, journal=folder / "journal", on_round=count)
    model = make(load(METHODS[method]), "exact").fit(house)
    model.save(folder / "model.json")
    for site in sites:
        site.ledger.close()
