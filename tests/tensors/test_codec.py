"""Frames: what is encoded is decoded, each codec has its size, and bytes that no encoder writes are refused."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.errors import FrameError
from pslab.tensors.codec import (
    CRC,
    HEADER,
    MAX_N,
    NAMES,
    START,
    Entries,
    codec_of,
    decode,
    encode,
    encode_into,
    frame_bytes,
    largest_frame_bytes,
    positions_of,
    prepare,
    requested,
    sliced_bytes,
    spread_bytes,
    write_into,
)

SPARSE = ("coordinates", "bitmap", "varint", "runs")


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare()


def sparse(n: int, indices: list[int], dtype: str = "f4") -> Entries:
    at = np.array(indices, np.int64)
    return Entries(n, at, np.random.default_rng(n).standard_normal(len(at)).astype(dtype))


def drawn(n: int, k: int, seed: int = 0, dtype: str = "f4") -> Entries:
    rng = np.random.default_rng(seed)
    return Entries(n, np.sort(rng.choice(n, k, replace=False)), rng.standard_normal(k).astype(dtype))


def resealed(frame: bytes | bytearray, length: int | None = None) -> bytes:
    """The frame with a correct CRC and, unless `length` is given, a correct length: only its content can be wrong."""
    changed = bytearray(frame)
    changed[:8] = (len(changed) if length is None else length).to_bytes(8, "little")
    crc = zlib.crc32(changed[START:], zlib.crc32(changed[: HEADER.size]))
    CRC.pack_into(changed, HEADER.size, crc)
    return bytes(changed)


def forged(codec: str, n: int, k: int, places: bytes) -> bytes:
    header = HEADER.pack(0, NAMES.index(codec), 0, 0, n, k)
    return resealed(header + bytes(CRC.size) + bytes(4 * min(k, 100)) + places)


def u4(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def assert_same(a: Entries, b: Entries) -> None:
    assert a.n == b.n
    assert a.values.dtype == b.values.dtype
    np.testing.assert_array_equal(a.values.view(np.uint8), b.values.view(np.uint8))  # bitwise: NaN and -0 too
    a_indices, b_indices = (np.arange(e.n) if e.indices is None else e.indices for e in (a, b))
    np.testing.assert_array_equal(a_indices, b_indices)


@st.composite
def entries(draw: st.DrawFn) -> Entries:
    n = draw(st.sampled_from([0, 1, 7, 8, 9, 127, 128, 129, 1000, 16_384, 20_000, 2_100_000, MAX_N]))
    indices = sorted(draw(st.sets(st.integers(0, n - 1), max_size=60))) if n else []
    if n <= 129 and draw(st.booleans()):  # all entries
        indices = list(range(n))
    dtype = draw(st.sampled_from(["f4", "f8"]))
    values = np.array(draw(st.lists(st.floats(width=32), min_size=len(indices), max_size=len(indices))), dtype)
    dense = len(indices) == n and draw(st.booleans())
    return Entries(n, None if dense else np.array(indices, draw(st.sampled_from([np.int32, np.int64]))), values)


@given(entries(), st.sampled_from(["auto", *NAMES]))
def test_decode_inverts_encode(given_entries: Entries, codec: str) -> None:
    impossible = codec == "dense" and len(given_entries.values) < given_entries.n
    if impossible or (codec == "bitmap" and given_entries.n == MAX_N):  # 256 MiB
        return
    frame = encode(given_entries, codec)
    assert_same(decode(frame, n=given_entries.n), given_entries)
    assert len(frame) <= largest_frame_bytes(given_entries.n, given_entries.values.itemsize)


@pytest.mark.parametrize(
    ("codec", "n", "indices", "positions"),
    [("coordinates", 9, [0, 8], u4(0, 8)), ("bitmap", 9, [0, 8], bytes([1, 1])),
     ("varint", 30_000, [3, 4, 200, 20_000], bytes([3, 0, 0x80 | 67, 1, 0x80 | 0x57, 0x80 | 0x1A, 1])),
     ("runs", 9, [1, 2, 6], u4(2, 1, 1, 6))],
)  # fmt: skip
def test_positions_are_written_as_the_codec_says(codec: str, n: int, indices: list[int], positions: bytes) -> None:
    frame = encode(sparse(n, indices), codec)
    assert frame[START + 4 * len(indices) :] == positions
    assert decode(forged(codec, n, len(indices), positions)).indices.tolist() == indices


@pytest.mark.parametrize(
    ("gap", "size"),
    [(0, 1), (127, 1), (128, 2), (2**14 - 1, 2), (2**14, 3), (2**21 - 1, 3), (2**21, 4), (2**28 - 1, 4), (2**28, 5),
     (MAX_N - 1, 5)],
)  # fmt: skip
def test_varint_size_at_the_limits_of_each_byte(gap: int, size: int) -> None:
    frame = encode(sparse(MAX_N, [gap]), "varint")
    assert len(frame) == START + 4 + size
    assert decode(frame).indices == [gap]


@given(st.integers(1, 3000), st.sampled_from(["f4", "f8"]), st.data())
def test_auto_is_the_shortest_codec(n: int, dtype: str, data: st.DataObject) -> None:
    given_entries = drawn(n, n - data.draw(st.integers(0, n)), seed=data.draw(st.integers(0, 99)), dtype=dtype)
    possible = NAMES if len(given_entries.values) == n else SPARSE
    sizes = {codec: len(encode(given_entries, codec)) for codec in possible}
    frame = encode(given_entries)
    assert len(frame) == sizes[NAMES[frame[8]]] == min(sizes.values())


def test_auto_writes_the_places_of_a_few_far_entries() -> None:
    assert NAMES[encode(Entries(MAX_N, np.array([2**29]), np.ones(1)))[8]] == "coordinates"


def test_frame_bytes_and_largest_frame_bytes() -> None:
    assert frame_bytes(10, 4) == len(encode(Entries(10, None, np.zeros(10, np.float32)))) == START + 40
    for n in (0, 1, 2, 7, 8, 9, 100):
        whole = Entries(n, None, np.zeros(n))
        assert largest_frame_bytes(n, 8) == max(len(encode(whole, codec)) for codec in NAMES)


def cuts(n: int, edges: list[int]) -> list[slice]:
    """Slices between every second pair of ascending edges, which do not touch."""
    found = sorted(set(edges))
    return [slice(start, stop) for start, stop in zip(found[::2], found[1::2], strict=False)]


@given(st.integers(2, 40_000), st.lists(st.integers(0, 10**9), max_size=12), st.sampled_from(["auto", *SPARSE]))
def test_sliced_bytes_is_the_size_of_the_frame(n: int, edges: list[int], codec: str) -> None:
    slices = cuts(n, [edge % (n + 1) for edge in edges])
    at = np.concatenate([np.arange(s.start, s.stop) for s in slices] or [np.empty(0, np.int64)])
    frame = encode(Entries(n, at, np.zeros(len(at), np.float32)), codec)
    assert sliced_bytes(n, slices, 4, codec) == len(frame)


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from(["auto", "coordinates", "bitmap", "varint", "runs"]))
def test_spread_bytes_is_the_size_of_the_frame_of_evenly_spread_entries(n: int, share: float, codec: str) -> None:
    indices = np.arange(k := round(share * n)) * n // max(1, k)
    frame = encode(Entries(n, indices, np.zeros(k, np.float32)), codec)
    assert spread_bytes(n, k, 4, codec) == len(frame)


def test_encode_into_writes_only_the_frame() -> None:
    given_entries = drawn(1000, 50)
    buffer = bytearray(b"\xff" * largest_frame_bytes(1000, 4))
    size = encode_into(memoryview(buffer), given_entries)
    assert bytes(buffer[:size]) == encode(given_entries)
    assert set(buffer[size:]) == {255}
    with pytest.raises(ValueError, match="largest_frame_bytes"):
        encode_into(memoryview(bytearray(size - 1)), given_entries)


def test_decoded_values_are_a_view_of_the_frame() -> None:
    frame = bytearray(encode(drawn(1000, 50)))
    decoded = decode(memoryview(frame))
    frame[START:] = bytes(len(frame) - START)
    assert not decoded.values.any()


@pytest.mark.parametrize(
    ("bad", "codec", "words"),
    [(Entries(5, np.array([1, 1]), np.zeros(2)), "auto", "increase"),
     (Entries(5, np.array([2, 1]), np.zeros(2)), "auto", "increase"),
     (Entries(5, np.array([-1, 1]), np.zeros(2)), "auto", "0 to 4"),
     (Entries(5, np.array([1, 5]), np.zeros(2)), "auto", "0 to 4"),
     (Entries(5, np.array([1]), np.zeros(2)), "auto", "2 values for 1"),
     (Entries(5, None, np.zeros(4)), "auto", "4 values for 5"),
     (Entries(5, np.array([1.0]), np.zeros(1)), "auto", "float64"),
     (Entries(5, np.array([1]), np.zeros(1, int)), "auto", "int64"),
     (Entries(2**31, np.array([1]), np.zeros(1)), "auto", "2147483647"),
     (Entries(-1, None, np.zeros(0)), "auto", "n=-1"),
     (Entries(5, np.arange(3), np.zeros(3)), "dense", "3 of 5"),
     (Entries(5, np.arange(1), np.zeros(1)), "varints", "did you mean 'varint'")],
)  # fmt: skip
def test_encode_refuses_invalid_entries_and_codecs(bad: Entries, codec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode(bad, codec)


@pytest.mark.parametrize("codec", NAMES)
def test_decode_refuses_every_flipped_bit_and_every_wrong_length(codec: str) -> None:
    frame = encode(Entries(9, None, np.ones(9)) if codec == "dense" else sparse(300, [0, 5, 9, 250, 299]), codec)
    flipped = [frame[:i] + bytes([frame[i] ^ 1 << bit]) + frame[i + 1 :] for i in range(len(frame)) for bit in range(8)]
    truncated = [frame[:size] for size in range(len(frame))]
    lengths = [resealed(frame, length) for length in (0, len(frame) - 1, len(frame) + 1, 2**64 - 1)]
    for wrong in (*flipped, *truncated, *lengths, frame + b"\0", resealed(frame + b"\0")):
        with pytest.raises(FrameError):
            decode(wrong)


@pytest.mark.parametrize("rounds", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_decode_refuses_damaged_frames(rounds: int) -> None:
    rng = np.random.default_rng(24)
    frames = [encode(drawn(6000, k, seed=k), codec) for k in (60, 600) for codec in SPARSE]
    frames.append(encode(Entries(600, None, np.ones(600, np.float32))))
    for _ in range(rounds):
        frame = bytearray(frames[rng.integers(len(frames))])
        if rng.random() < 0.3:
            del frame[rng.integers(len(frame)) :]
        else:
            for _ in range(rng.integers(1, 4)):
                frame[rng.integers(len(frame))] ^= rng.integers(1, 256)
        if bytes(frame) not in frames:
            with pytest.raises(FrameError):
                decode(memoryview(frame))


@settings(max_examples=200)
@given(st.data(), st.sampled_from(NAMES))
def test_forged_content_is_refused_or_is_a_valid_vector(data: st.DataObject, codec: str) -> None:
    given_entries = sparse(150, sorted(data.draw(st.sets(st.integers(0, 149), max_size=20))))
    if codec == "dense":
        given_entries = Entries(9, None, np.zeros(9))
    frame = bytearray(encode(given_entries, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(resealed(frame))
    except FrameError:
        return
    assert 0 <= decoded.n <= MAX_N
    if decoded.indices is None:
        assert len(decoded.values) == decoded.n
    else:
        assert len(decoded.values) == len(decoded.indices)
        assert (np.diff(decoded.indices) > 0).all()
        assert not len(decoded.indices) or 0 <= decoded.indices[0] <= decoded.indices[-1] < decoded.n


@pytest.mark.parametrize(
    ("codec", "n", "k", "places"),
    [("dense", 3, 2, b""), ("dense", 3, 3, b"\0"), ("dense", 2, 3, b""),
     ("coordinates", 9, 2, bytes([1, 0, 0, 0, 1, 0, 0, 0])), ("coordinates", 9, 2, bytes([2, 0, 0, 0, 1, 0, 0, 0])),
     ("coordinates", 9, 1, bytes([9, 0, 0, 0])), ("coordinates", 9, 1, b"\xff\xff\xff\xff"),
     ("coordinates", 9, 1, bytes(3)), ("coordinates", 9, 1, bytes(8)),
     ("bitmap", 9, 1, bytes([3, 0])), ("bitmap", 9, 1, bytes([0, 0])), ("bitmap", 9, 1, bytes([0, 2])),
     ("bitmap", 9, 1, bytes([1])), ("bitmap", 9, 1, bytes([1, 0, 0])),
     ("varint", 9, 1, b""), ("varint", 9, 1, b"\x80"), ("varint", 9, 1, b"\x01\x01"), ("varint", 9, 1, b"\x09"),
     ("varint", 9, 2, b"\x08\x00"), ("varint", 999, 1, b"\x81\x00"), ("varint", 999, 1, b"\x80\x80\x01"),
     ("varint", MAX_N, 1, b"\x80\x80\x80\x80\x80\x01"), ("varint", MAX_N, 1, b"\x80\x80\x80\x80\x7f"),
     ("varint", MAX_N, 2, b"\xff\xff\xff\xff\x07\x00"), ("varint", 9, 0, b"\x00"), ("varint", 9, 0, b"\x80"),
     ("runs", 9, 2, u4(3)), ("runs", 9, 2, u4(3, 3)), ("runs", 9, 2, u4(2, 8)), ("runs", 9, 0, u4(0, 1)),
     ("runs", 9, 2, u4(1, 1, 3, 4)), ("runs", 9, 2, u4(1, 1, 5, 3)), ("runs", 9, 2, u4(2, 0, 3, 5)),
     ("runs", 9, 2, u4(2, 2**32 - 1)), ("runs", 9, 2**31, u4(2**31, 3)), ("runs", 9, 1, bytes(7)),
     ("varint", 9, 1, b"\x01\x80"), ("varint", MAX_N, 1, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")],
)  # fmt: skip
def test_decode_refuses_invalid_positions(codec: str, n: int, k: int, places: bytes) -> None:
    with pytest.raises(FrameError):
        decode(forged(codec, n, k, places))


@pytest.mark.parametrize("codec", NAMES)
def test_a_forged_header_allocates_no_memory(codec: str) -> None:
    frames = [forged(codec, MAX_N, k, bytes(200)) for k in (0, 1, 50, 2**20, MAX_N, 2**32 - 1)]
    tracemalloc.start()
    for frame in frames:
        with pytest.raises(FrameError):
            decode(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(("place", "value"), [(8, 5), (9, 255), (10, 1), (11, 1), (15, 0x80)])
def test_decode_refuses_unknown_header_fields_and_a_vector_of_another_length(place: int, value: int) -> None:
    frame = bytearray(encode(drawn(100, 10)))
    assert decode(frame, n=100).n == 100
    with pytest.raises(FrameError, match="100 entries where one of 101"):
        decode(frame, n=101)
    frame[place] = value
    with pytest.raises(FrameError, match="not one that this version writes"):
        decode(resealed(frame))


@given(st.integers(0, 3000), st.integers(0, 99), st.binary(max_size=20), st.sampled_from(NAMES))
def test_positions_that_begin_a_body_say_where_they_end(k: int, seed: int, behind: bytes, codec: str) -> None:
    n = k if codec == "dense" else 3000 + 40_000 * (seed % 2)
    written = bytes(codec_of(codec).positions(drawn(n, k, seed).indices, n))
    assert codec_of(codec).extent(np.frombuffer(written + behind, np.uint8), n, k) == len(written)


@pytest.mark.parametrize("codec", ["auto", *SPARSE])
@pytest.mark.parametrize("k", [1, 3, 40, 64])
def test_a_request_names_places_and_has_no_values(codec: str, k: int) -> None:
    entries = drawn(64, k)
    buffer = memoryview(bytearray(largest_frame_bytes(64, 4)))
    size = write_into(buffer, positions_of(entries.indices, 64, codec))
    assert np.array_equal(requested(buffer[:size], 64), entries.indices)
    assert size == len(encode(entries, codec)) - entries.values.nbytes
    size = write_into(buffer, positions_of(entries.indices, 64, codec), entries.values)
    assert bytes(buffer[:size]) == encode(entries, codec)


def test_a_request_is_no_frame_of_entries_and_entries_are_no_request() -> None:
    entries, buffer = drawn(64, 5), memoryview(bytearray(200))
    size = write_into(buffer, positions_of(entries.indices, 64))
    with pytest.raises(FrameError, match="asks for 5 entries has no values"):
        decode(buffer[:size])
    with pytest.raises(FrameError, match="not one that asks"):
        requested(encode(entries), 64)
    with pytest.raises(FrameError, match="not one that asks for some of 65"):
        requested(buffer[:size], 65)
    buffer[size - 1] ^= 1
    with pytest.raises(FrameError, match="changed on its way"):
        requested(buffer[:size], 64)
