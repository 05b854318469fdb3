"""The compiled loops over positions against NumPy: what they write, what they read, and the words of each refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pslab.errors import FrameError
from pslab.tensors import positions
from pslab.tensors.codec import AUTO, MAX_N, Entries, codec_of, decode, encode, loops

Array = NDArray[Any]
GUARD = 0x5A


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    loops()


# --- NumPy's way ------------------------------------------------------------------------------------------------------


def written(codec: str, indices: Array, n: int) -> bytes:
    """Increasing indices below n as the codec's docstring says."""
    if codec == "coordinates":
        return indices.astype("<i4").tobytes()
    if codec == "bitmap":
        return np.packbits(np.bincount(indices, minlength=n) > 0, bitorder="little").tobytes()
    if codec == "runs":
        first = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
        return np.concatenate((np.diff(first, append=len(indices)), indices[first])).astype("<u4").tobytes()
    gaps = np.diff(indices, prepend=-1)[:, None] - 1
    septets = gaps >> np.arange(0, 35, 7)
    more = septets[:, 1:] > 0
    octets = septets & 127 | np.pad(more, ((0, 0), (0, 1))) << 7
    return octets[np.pad(more, ((0, 0), (1, 0)), constant_values=True)].astype(np.uint8).tobytes()


def found(codec: str, body: bytes, n: int, k: int) -> Array:
    """The k indices below n that bytes say, or an error."""
    octets, size = np.frombuffer(body, np.uint8), len(body)
    if codec == "coordinates":
        if size != 4 * k:
            raise FrameError(f"{k} coordinates take {4 * k} bytes, not {size}")
        indices = np.frombuffer(body, "<i4").astype(np.int64)
        if not (np.diff(indices, prepend=-1, append=n) > 0).all():
            raise FrameError(f"coordinates that do not increase or lie outside 0 to {n - 1}")
    elif codec == "bitmap":
        if size != -(-n // 8):
            raise FrameError(f"a bitmap of {n} entries takes {-(-n // 8)} bytes, not {size}")
        indices = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
        if (indices >= n).any():
            raise FrameError("a bitmap with bits set beyond its last entry")
        if len(indices) != k:
            raise FrameError(f"a bitmap with {len(indices)} bits set for {k} values")
    elif codec == "varint":
        last = octets < 128
        if last.sum() != k or not last[-1:].all():
            raise FrameError(f"{size} bytes are not {k} complete varints")
        number = np.cumsum(last) - last  # of each byte, which varint it belongs to
        place = np.arange(size) - np.searchsorted(number, number)
        if (place > 4).any() or ((octets == 0) & (place > 0)).any():
            raise FrameError("a varint that is longer than necessary")
        gaps = np.bincount(number, (octets & 127) * 2.0 ** (7 * place), k)
        indices = np.cumsum(gaps + 1) - 1
        if (indices >= n).any():
            raise FrameError(f"varints outside 0 to {n - 1}")
    else:
        if size % 8:
            raise FrameError(f"{size} bytes are not a whole number of runs of 8")
        lengths, starts = np.frombuffer(body, "<u4").astype(np.int64).reshape(2, -1)
        if lengths.sum() != k:
            raise FrameError(f"runs of {lengths.sum()} entries for {k} values")
        if not lengths.all() or (starts[1:] <= (starts + lengths)[:-1]).any() or (starts + lengths > n).any():
            raise FrameError(f"runs that are empty, touch each other or lie outside 0 to {n - 1}")
        indices = np.arange(k) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    return indices.astype(np.int64)


# --- what is written and read -----------------------------------------------------------------------------------------


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Array, int]:
    """Increasing indices of any density, some of them scattered and some in runs, and a length that holds them."""
    n = draw(st.sampled_from([1, 7, 8, 63, 64, 65, 1000, 20_000, 300_000]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    mask = rng.random(n) < draw(st.sampled_from([0, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 1]))
    for start in rng.integers(n, size=draw(st.integers(0, 3))):
        mask[start : start + draw(st.sampled_from([1, 2, 64, 900]))] = True
    return np.flatnonzero(mask), n


@settings(deadline=None)
@given(vectors(), st.sampled_from(AUTO))
def test_the_loops_write_the_bytes_of_numpy_and_read_them(given_vector: tuple[Array, int], codec: str) -> None:
    indices, n = given_vector
    body = bytes(codec_of(codec).positions(indices, n))
    assert body == written(codec, indices, n)
    np.testing.assert_array_equal(codec_of(codec).indices(np.frombuffer(body, np.uint8), n, len(indices)), indices)


@pytest.mark.parametrize("gap", [0, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1, 2**28])
def test_varints_of_far_entries(gap: int) -> None:
    indices = np.cumsum(np.full(7, gap + 1)) - 1
    body = bytes(codec_of("varint").positions(indices, MAX_N))
    assert body == written("varint", indices, MAX_N)
    assert codec_of("varint").indices(np.frombuffer(body, np.uint8), MAX_N, 7).tolist() == indices.tolist()


@settings(deadline=None)
@given(vectors())
def test_the_bytes_of_every_codec_are_counted_at_once(given_vector: tuple[Array, int]) -> None:
    indices, n = given_vector
    lengths = {codec: len(written(codec, indices, n)) for codec in ("varint", "runs")}
    assert positions.counted(indices, n) == (lengths["varint"], lengths["runs"] // 8)


@settings(deadline=None)
@given(vectors(), st.integers(0, 10**6), st.sampled_from([-(2**63), -1, 0, 1, 300_000, 2**31, 2**63 - 1]))
def test_indices_that_do_not_increase_or_lie_outside_are_not_counted(
    given_vector: tuple[Array, int], place: int, index: int
) -> None:
    indices, n = given_vector
    indices = np.insert(indices, place % (len(indices) + 1), index)
    valid = (np.diff(indices.astype(object), prepend=-1, append=n) > 0).all()
    assert (positions.counted(indices, n)[0] >= 0) == valid


def outcome(read: Callable[[], Array]) -> list[int] | str:
    """The indices that are read, or the words of the refusal."""
    try:
        return [int(index) for index in read()]
    except FrameError as error:
        return str(error)


def runs_of(starts: list[int], lengths: list[int]) -> bytes:
    return np.array([*lengths, *starts], "<u4").tobytes()


@st.composite
def damaged(draw: st.DrawFn, codec: str) -> tuple[bytes, int, int]:
    """Positions, n and k, something of which was changed, or random bytes."""
    indices, n = draw(vectors().filter(lambda given_vector: len(given_vector[0]) < 2000))
    body, k = bytearray(written(codec, indices, n)), len(indices)
    if draw(st.booleans()) and draw(st.booleans()):
        body = bytearray(draw(st.binary(max_size=40)))
    for _ in range(draw(st.integers(0, 3))):
        at, byte = draw(st.integers(0, max(len(body) - 1, 0))), draw(st.sampled_from([0, 1, 127, 128, 129, 255]))
        body[at : at + draw(st.integers(0, 2))] = bytes([byte] * draw(st.integers(0, 2)))
    ends = int((np.frombuffer(body, np.uint8) < 128).sum())  # so many varints may be complete
    changed = draw(st.sampled_from([k, k, ends, k + 1, max(k - 1, 0), MAX_N]))
    return bytes(body), draw(st.sampled_from([n, n, n + 1, max(n - 1, 0)])), changed


@settings(max_examples=400, deadline=None)
@example(("varint", (b"\x80" * 40 + b"\x01", 9, 1))).via("a shift beyond the word")
@example(("varint", (b"\xff\xff\xff\xff\x7f" * 99, MAX_N, 99))).via("a sum beyond the word")
@example(("varint", (b"\x09\x80\x00", 9, 2))).via("two faults")
@example(("runs", (runs_of([2**32 - 1], [2]), 9, 2))).via("an end beyond 32 bits")
@example(("runs", (runs_of([3, 4], [1, 1]), 9, 2))).via("runs that touch")
@example(("runs", (runs_of([3, 6], [2, 0]), 9, 2))).via("an empty run")
@example(("runs", (runs_of([8], [2]), 9, 2))).via("a run that ends outside")
@example(("varint", (b"\x01\x80", 9, 1))).via("bytes after the last of them")
@example(("varint", (b"\x80", 9, 1))).via("one that does not end")
@given(st.sampled_from(AUTO).flatmap(lambda codec: st.tuples(st.just(codec), damaged(codec))))
def test_the_loops_read_any_bytes_as_numpy_does_or_refuse_them_with_the_same_words(
    forged: tuple[str, tuple[bytes, int, int]]
) -> None:
    codec, (body, n, k) = forged
    if k > n:  # refused before
        return
    read = codec_of(codec).indices
    assert outcome(lambda: read(np.frombuffer(body, np.uint8), n, k)) == outcome(lambda: found(codec, body, n, k))


@given(st.binary(max_size=200), st.integers(0, 30))
def test_no_bytes_make_a_loop_write_beyond_its_array(body: bytes, room: int) -> None:
    octets, guarded = np.frombuffer(body, np.uint8), np.full(room + 16, GUARD)
    whole = np.frombuffer(body[: len(body) // 16 * 16], "<u8")
    lengths = whole.astype(np.int64) & 7 | 1
    positions.read_varints(octets, MAX_N, guarded[8 : room + 8])
    positions.read_bits(whole.copy(), guarded[8 : room + 8])
    positions.read_runs(np.arange(len(lengths)) * 8, lengths, MAX_N, guarded[8 : room + 8])
    assert (guarded[:8] == GUARD).all()
    assert (guarded[room + 8 :] == GUARD).all()


def test_each_loop_is_compiled_for_one_kind_of_array() -> None:
    wide = np.arange(0, 400, 2)
    for indices in (wide, wide.astype(np.int32), wide[::3]):
        for codec in AUTO:
            for buffer in (bytes, bytearray):
                decode(buffer(encode(Entries(400, indices, np.ones(len(indices))), codec)))
    names = [function.__name__ for function in positions.loops.functions]
    assert {name: len(getattr(positions, name).signatures) for name in names} == dict.fromkeys(names, 1)
