"""Methods: policies whose workers compute several gradients between two exchanges with the server."""
