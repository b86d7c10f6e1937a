"""Looking at a model without touching it."""
