"""What a clinician sees of a model: the report of how it came about."""
