"""Federated RuleFit: shared cutoffs, boosted rules of every site, one sparse model over all of them."""
