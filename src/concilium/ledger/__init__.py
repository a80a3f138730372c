"""What a hospital has released: one store, one hash chain, budgets, agreed studies."""
