"""How gradients change the server's weights: the store, optimizers, and what rates keep."""
