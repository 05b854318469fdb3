"""Quantization: values of a push as short codes; rules in `rules`, their parts in `codes`, frames in `push_frames`."""
