"""How gradients change the server's weights: the store, optimizers, and the state that some rates keep."""
