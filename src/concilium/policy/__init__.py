"""What a hospital lets out: its policy file, and the constraint graphs that filter what leaves."""

from concilium.policy.actions import ConstraintGraphs, parse

__all__ = ["ConstraintGraphs", "parse"]
