"""How good a model is: figures from predictions, and ways to hold patients or sites back from learning."""
