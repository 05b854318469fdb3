"""Torch without time: models, data, key ranges, pruning, codecs and the server's store."""
