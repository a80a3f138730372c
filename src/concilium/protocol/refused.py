"""A refusal, before it becomes a message: which rule says no, and why."""

from __future__ import annotations


class Refused(Exception):
    """A rule says no; becomes a Refusal, which may say what was asked, is spent, is left and would fit."""

    def __init__(self, rule: str, reason: str, **receipt: str) -> None:
        self.rule, self.reason, self.receipt = rule, reason, receipt
        super().__init__(reason)
