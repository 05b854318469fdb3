"""Quantization: the values of a push as short codes. The rules are in `rules`, the stage is in `push_frames`."""
