"""Patient experts: one small network for each patient, ensembles of them that answer privately, and a student that
ships (Schamoni, Hagmann, Riezler 2022; docs/methods.md, part 8)."""
