"""Distributed ID3 decision trees (docs/methods.md, part 1): crosstables at the sites, growing at the house."""
