"""Federated RuleFit: shared cutoffs, boosted rules, one sparse model over all sites (docs/methods.md, part 2)."""
