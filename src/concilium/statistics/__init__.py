"""The statistics that every study begins with: Table 1, regression, survival curves and hazard ratios."""
