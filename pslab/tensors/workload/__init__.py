"""What is trained: models, datasets, the keys of a model, and the cost of its layers."""
