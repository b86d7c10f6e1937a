"""How fast: the training step, classifying, each routing alone, whole epochs."""
