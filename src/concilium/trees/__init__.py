"""Distributed ID3 decision trees (DIDT): crosstables at the sites, growing at the house."""
