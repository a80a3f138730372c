"""A study from its file to its results: read and checked, planned, run, evaluated, written."""

from concilium.study.study import Study

__all__ = ["Study"]
