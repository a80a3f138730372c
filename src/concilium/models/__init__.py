"""What methods have in common: the estimator contract, thresholds, predictions, explanations, model files."""
