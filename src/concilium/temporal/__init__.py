"""Temporal logic over time series: formulas that a clinician can read, evaluated on whole cohorts.

`cc.stl` is `concilium.temporal.stl`; docs/temporal-logic.md explains the language, docs/temporal-rules.md learning,
docs/methods.md, section 6, what both rest on.
"""
