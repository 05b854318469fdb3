"""Pushes of whole matrices in another form: thin factors, or coefficients; rules in `lowrank` and `demo`, frames."""
