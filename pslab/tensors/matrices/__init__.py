"""Pushes of whole matrices in another form: thin factors, coefficients or sketches; rules and frames."""
