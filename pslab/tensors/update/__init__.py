"""The update of the server's weights by gradients: the store, optimizers, and the state of rates and methods."""
