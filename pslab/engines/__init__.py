"""The drivers: they perform the effects of one protocol, on real processes or in virtual time."""
