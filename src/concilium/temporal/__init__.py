"""Temporal logic over time series: formulas that a clinician can read, evaluated on whole cohorts.

`cc.stl` is `concilium.temporal.stl`; the language is explained in docs/temporal-logic.md.
"""
