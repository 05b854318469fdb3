"""Datasets that lie in files: MNIST, and images in folders."""
