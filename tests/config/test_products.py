"""The library that multiplies matrices follows from the processor, or from the environment, and names runs."""

from __future__ import annotations

import pytest

from pslab import Run
from pslab.config import products
from pslab.config.products import CHOICE, MKL, ONEDNN, fastest, here
from pslab.errors import ConfigError


@pytest.mark.parametrize(("vendor", "flags", "library"), [
    ("AuthenticAMD", "fpu sse2 avx2 avx512f avx512_bf16", ONEDNN), ("AuthenticAMD", "fpu sse2 avx2", MKL),
    ("GenuineIntel", "fpu sse2 avx2 avx512f", MKL)])  # fmt: skip
def test_onednn_multiplies_where_mkl_does_half_of_what_the_processor_can(vendor, flags, library, tmp_path, monkeypatch):
    place = tmp_path / "cpuinfo"
    place.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert fastest(place) == library
    monkeypatch.delenv(CHOICE)
    monkeypatch.setattr(products, "fastest", lambda: fastest(place))
    assert here() == library


def test_without_a_description_of_the_processor_mkl_multiplies(tmp_path):
    assert fastest(tmp_path / "none") == MKL


def test_an_unknown_library_is_refused_with_those_that_exist(monkeypatch):
    monkeypatch.setenv(CHOICE, "blis")
    with pytest.raises(ConfigError, match=r"PSLAB_PRODUCTS.*blis.*must be mkl or onednn"):
        here()


@pytest.mark.parametrize(("fields", "other"), [
    ({}, True), ({"engine": "virtual"}, True), ({"device": "cuda"}, False), ({"dtype": "float64"}, False),
    ({"engine": "timing"}, False), ({"ranges": "layers"}, True),
    ({"pull": "keys", "model": "logreg", "data": "planted"}, False)])  # fmt: skip
def test_runs_with_other_products_are_other_runs(fields, other, monkeypatch):
    """Those whose bits do not hang on them keep their names."""
    digests = dict[str, str]()
    for library in (MKL, ONEDNN):
        monkeypatch.setenv(CHOICE, library)
        digests[library] = Run(**fields).digest
    assert (digests[MKL] != digests[ONEDNN]) is other
    assert Run(**fields).digest_on("", ONEDNN) == digests[ONEDNN]
