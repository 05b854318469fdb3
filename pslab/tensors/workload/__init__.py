"""Models, data, losses and metrics, the keys of a model, and the cost of its layers."""
