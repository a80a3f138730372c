"""What an evaluation came to: figures with their intervals and risks, over all patients, by site and by fold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from concilium.evaluation.leave_out import FoldResult, Predictions, figures, join_numbers
from concilium.evaluation.number_metrics import calibrate
from concilium.evaluation.resampling import estimate_intervals
from concilium.evaluation.risks import find_risks, judge_risks, say_calibration
from concilium.records.table import Value


def summarise(results: Sequence[FoldResult], positive: Value | None) -> dict[str, Any]:
    """Figures over all patients measured, for each site, and for each fold, as plain JSON values."""
    predictions = [at_site for result in results for at_site in result.predictions]
    return {
        "overall": {
            "patients": sum(len(at_site.truth) for at_site in predictions),
            **figures(predictions, positive),
            "intervals": estimate_intervals(predictions, positive),
        },
        "sites": {
            at_site.site: {
                "patients": len(at_site.truth),
                **figures([at_site], positive),
                **took(result),
                "intervals": estimate_intervals([at_site], positive),
                **calibrate_site(at_site, positive),
            }
            for result in results
            for at_site in result.predictions
        },
        "folds": [
            {
                "left_out": list(result.left_out),
                "patients": sum(len(at_site.truth) for at_site in result.predictions),
                **figures(result.predictions, positive),
                **took(result),
            }
            for result in results
            if result.left_out
        ],
        "risks": judge_risks(predictions, positive),
    }


def calibrate_site(predictions: Predictions, positive: Value | None) -> dict[str, Any]:
    """How well the risks of one site's patients come true; nothing where a number is predicted."""
    found = find_risks([predictions], positive)
    if found is None or not len(found[0]):
        return {}
    return {"calibration": say_calibration(*found)}


def took(result: FoldResult) -> dict[str, float]:
    """What making a fold's model took."""
    return {"rounds": result.rounds, "bytes": result.bytes, "seconds": result.seconds}


def calibrate_all(results: Iterable[FoldResult]) -> list[dict[str, Any]]:
    """Predicted numbers beside observed ones in tenths of the prediction, over all patients measured."""
    return calibrate(*join_numbers(at_site for result in results for at_site in result.predictions))
