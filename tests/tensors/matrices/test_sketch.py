"""Count sketches: the vector of the specification, what they add up to, and the server's momentum and error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tiny import tiny
from torch import nn
from whole import in_process

from pslab.config.spec import build
from pslab.lab.judge.tables import tables_of
from pslab.protocol.messages import Push
from pslab.protocol.server import Step
from pslab.tensors.aggregates import at_server
from pslab.tensors.codec import Entries
from pslab.tensors.matrices.frames import MatrixFrames, frames_of
from pslab.tensors.matrices.sketch import CountSketch, estimated, hashes, sketched
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.update.store import Part
from pslab.tensors.workload.keyspace import Keyspace

NONE = build("quantize", "none")


def test_a_sketch_and_its_estimates_as_in_the_specification():
    v, buckets = np.array([3.0, 1.0, 0.5]), np.array([[0, 1, 0], [1, 1, 0], [0, 0, 1]])
    signs = np.array([[1, -1, 1], [1, 1, -1], [-1, 1, 1]])
    table = sketched(v, buckets, signs, 2)
    assert table.tolist() == [[3.5, -1], [-0.5, 4], [-2, 0.5]]
    assert estimated(table, buckets, signs).tolist() == [3.5, 1, 0.5]


@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 50), st.integers(0, 99))
def test_sketches_add_up_and_estimates_are_medians(rows: int, cols: int, n: int, seed: int):
    rng = numpy_generator(seed, "sketch")
    v, w, (buckets, signs) = rng.standard_normal(n), rng.standard_normal(n), hashes(seed, rows, cols, n)
    assert {*np.unique(signs)} <= {-1, 1}
    assert 0 <= buckets.min() <= buckets.max() < cols
    table = sketched(v, buckets, signs, cols)
    wanted = np.zeros((rows, cols))
    for row in range(rows):
        for entry in range(n):
            wanted[row, buckets[row, entry]] += signs[row, entry] * v[entry]
    np.testing.assert_allclose(table, wanted, atol=1e-12)
    both = sketched(v + w, buckets, signs, cols)
    np.testing.assert_allclose(both, table + sketched(w, buckets, signs, cols), atol=1e-12)
    said = np.stack([signs[row] * table[row, buckets[row]] for row in range(rows)])
    assert np.array_equal(estimated(table, buckets, signs), np.median(said, axis=0))


def test_the_largest_entries_are_found_among_many_small_ones():
    rng, n, heavy = numpy_generator(0, "sketch"), 20_000, [5, 777, 12_345, 19_999]
    v, (buckets, signs) = 0.01 * rng.standard_normal(n), hashes(0, 5, 400, n)
    v[heavy] = [5, -6, 7, -8]
    found = estimated(sketched(v, buckets, signs, 400), buckets, signs)
    assert sorted(np.argsort(-np.abs(found))[:4]) == heavy
    np.testing.assert_allclose(found[heavy], v[heavy], atol=0.3)


def made(rule: CountSketch, size: int, seed: int = 0) -> MatrixFrames:
    keyspace = Keyspace.of(nn.Linear(size, 1, bias=False))
    found = frames_of(NONE, rule, [Part((slice(0, size),))], keyspace, seed=seed)
    assert isinstance(found, MatrixFrames)
    return found


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 30))
@example(5, 1, 5)  # in a matrix of 2 x 3
def test_a_push_has_rows_times_cols_values_or_all_entries_if_these_are_no_more(size: int, rows: int, cols: int):
    frames, entries = made(CountSketch(cols, rows), size), np.random.default_rng(size).standard_normal(size)
    buffer = memoryview(bytearray(frames.largest(0)))
    sent = frames.write(buffer, 0, Entries(size, None, entries.astype(np.float32)), 0, 0)
    count = frames.count(0, Entries(0, None, np.empty(0)), 0)
    assert sent == 24 + 4 * count
    assert count == size or count == rows * cols < size
    if count == size:
        assert np.array_equal(frames.sent(bytes(buffer[:sent]), 0, 0).values, entries.astype(np.float32))


def test_workers_and_server_have_the_same_hashes_and_other_ranges_and_seeds_have_others():
    rule, v = CountSketch(5, 3), Entries(64, None, np.arange(64, dtype=np.float32))
    found = []
    for seed in (0, 0, 1):
        frames = made(rule, 64, seed)
        buffer = memoryview(bytearray(frames.largest(0)))
        found.append(bytes(buffer[: frames.write(buffer, 0, v, len(found), 0)]))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("rule", ["sketch:cols=40,rows=3,topk=4", "sketch:cols=40,rows=2,topk=5,decay=0",
                                  "sketch:cols=100,topk=3"])  # fmt: skip
def test_the_server_steps_by_the_largest_estimates_of_what_was_not_yet_applied(rule: str):
    """Against the algorithm itself, with tables of its own; the last rule sends all entries, which are exact."""
    own, size, rng = build("prune", rule), 150, numpy_generator(0, "sketch")
    frames = made(own, size)
    part, keyspace = Part((slice(0, size),)), Keyspace.of(nn.Linear(size, 1, bias=False))
    (server,) = at_server(own, NONE, build("sync", "bsp"), [part], keyspace, nn.Identity(), frames, 0)
    (matrix,) = frames.matrices[0]
    padded, exact = matrix.shape[0] * matrix.shape[1], own.dense(matrix.shape)
    assert exact is ("100" in rule)
    buckets, signs = hashes(int(numpy_generator(0, "sketch", 0).integers(2**63)), own.rows, own.cols, padded)

    def table(v: np.ndarray) -> np.ndarray:
        return v.copy() if exact else sketched(np.pad(v, (0, padded - size)), buckets, signs, own.cols)

    momentum = error = table(np.zeros(size))
    for turn in range(6):
        gradients, pushes = rng.standard_normal((3, size)).astype(np.float32), []
        for worker, gradient in enumerate(gradients):
            buffer = memoryview(bytearray(frames.largest(0)))
            sent = frames.write(buffer, 0, Entries(size, None, gradient), worker, turn)
            pushes.append(frames.read(buffer[:sent], 0, turn))
        (found,) = server.adjust(Step(0, tuple(Push(w, 0, turn, turn) for w in range(3)), True, turn + 1), pushes)
        momentum = own.decay * momentum + table(gradients.astype(float).mean(0))
        error = error + momentum
        estimate = error if exact else estimated(error, buckets, signs)[:size]
        largest = np.sort(np.argsort(-np.abs(estimate), kind="stable")[: own.applied])
        assert np.array_equal(found.indices, largest)
        np.testing.assert_allclose(found.values, estimate[largest], rtol=1e-4, atol=1e-5)
        applied = np.zeros(size)
        applied[largest] = found.values
        error = error - table(applied)


def test_a_run_changes_few_weights_in_a_step_and_learns():
    fields = {"engine": "virtual", "cluster": "steady", "learning_rate": 0.03, "pushes": 240, "pull": "changed"}
    run = tiny(prune="sketch:cols=100", **fields)
    outcome = in_process(run)
    tables, _, facts = tables_of(run, outcome)
    assert facts["verdict"] == "valid", facts
    assert {*tables["pushes"].bytes_up} == {24 + 4 * 500}
    assert tables["pushes"].bytes_down[10:200].max() < 24 + 10 * 8
    assert outcome.accuracy[-1, 2] > 0.3
    whole = in_process(run.but(pull="whole"))
    assert whole.weights.tobytes() == outcome.weights.tobytes()


def test_a_tenth_of_the_buckets_change_in_a_step_unless_the_rule_says_otherwise():
    assert [CountSketch(cols).applied for cols in (5, 100, 1009)] == [1, 10, 100]
    assert CountSketch(100, topk=7).applied == 7
    assert torch.equal(CountSketch(9).select(torch.zeros(3)), torch.arange(3))
