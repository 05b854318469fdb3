"""Torch without time: workloads, pruning, codecs and updates of tensors."""
