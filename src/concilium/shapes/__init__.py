"""Shapes: a readable additive model, one curve for each attribute."""
