"""Partitioners of others, for those who have them: ``pip install 'pslab[partition]'``."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import ConfigError
from pslab.tensors.sparse.rows import SparseRows

Array = NDArray[Any]


def mtkahypar(rows: SparseRows, weights: Array, workers: int, epsilon: float, seed: int) -> Array:
    """Mt-KaHyPar for Σ(λ - 1), with the preset that gives the same partition each time.

    Source: Gottesbüren et al. (ESA 2022)

    Raises:
        ConfigError: it is not installed.
    """
    library = _library("mtkahypar")
    machine = library.initialize(1)
    context = machine.context_from_preset(library.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(workers, epsilon, library.Objective.KM1)
    library.set_seed(seed % 2**31)
    starts, holders = rows.holders
    nets = [holders[first:end].tolist() for first, end in pairwise(starts) if end - first > 1]
    graph = machine.create_hypergraph(context, len(rows), len(nets), nets, weights.tolist(), [1] * len(nets))
    found = graph.partition(context)
    return np.array([found.block_id(row) for row in range(len(rows))], np.int64)


def metis(rows: SparseRows, weights: Array, workers: int) -> Array:
    """METIS on the bipartite graph of rows and keys: it counts cut edges, and may exceed ε.

    Source: Karypis and Kumar (SIAM J. Sci. Comput. 1998)

    Raises:
        ConfigError: it is not installed.
    """
    library, (starts, holders) = _library("pymetis"), rows.holders
    edges = np.concatenate([rows.keys + len(rows), holders])
    ends = np.concatenate([rows.starts, rows.starts[-1] + starts[1:]])
    heavy = np.concatenate([weights, np.zeros(rows.key_count, np.int64)])
    _, parts = library.part_graph(workers, xadj=ends.tolist(), adjncy=edges.tolist(), vweights=heavy.tolist())
    return np.array(parts[: len(rows)], np.int64)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError("partition", name, "is not installed: pip install 'pslab[partition]'") from None
