"""Torch without time: workloads, compression and updates of tensors."""
