"""What no search can do is refused before a run, in words that say the way out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from refusals import Row, check_refused
from tiny import tiny

from pslab.config.run import Run
from pslab.lab.advise.map import advise_map
from pslab.lab.advise.race import around, race
from pslab.lab.advise.search import advise
from pslab.lab.advise.space import candidates
from pslab.lab.runs.grid import grid

BASE = tiny(cluster={"compute_s": 0.01, "bandwidth_bit_s": 1e6}, pushes=40)
AXES: dict[str, Any] = {"bandwidth_bit_s": [1e6], "latency_s": [0.0]}


def asked(target: Any = 0.5, run: Run = BASE, **more: Any) -> Any:
    return lambda: advise(run, target=target, **{"space": {"sync": ["bsp", "asp"]}, "progress": False, **more})


def mapped(target: Any = 0.9, axes: dict[str, Any] = AXES, **fields: Any) -> Any:
    return lambda: advise_map(BASE.but(**fields), target=target, **axes)


def raced(default: str = "bsp", rates: tuple[float, ...] = around(1.0), **more: Any) -> Any:
    return lambda: race({"asp": rates, "bsp": rates}, default, lambda trials: dict.fromkeys(trials, math.inf),
                        **{"simplicity": {"asp": (1,), "bsp": (0,)}, **more})  # fmt: skip


def spaces(space: Any, run: Run = BASE) -> Any:
    return lambda: candidates(run, space)


ROWS: list[Row] = [
    *(("space", spaces(space), words) for space, words in (
        ({"learning_rate": [1, 2]}, "argument learning_rates= instead"), ({"seed": [1, 2]}, "seeds= instead"),
        ({"model": [1, 2]}, "set it in the base"), ({"pushes": [1, 2]}, "set it in the base"),
        (grid(BASE.but(model="mlp:4"), sync=["bsp", "asp"]), "its model differs from the base's"))),
    ("snyc", spaces({"snyc": ["bsp"]}), "did you mean 'sync'"),
    ("sync", spaces({"sync": ["bsp", "spp:3"]}), "did you mean 'ssp'"),
    ("batch_size", spaces({"sync": ["bsp", "asp"]}, BASE.but(batch_size=4096)), "need 16384 examples"),
    ("merit", asked(merit="byte"), "did you mean 'bytes'"),
    *(("target", asked(target), words) for target, words in (
        (math.nan, "must be a number above 0"), (0, "above 0"), (1.2, "above 0"), (80, "80 % is 0.8"),
        ("80%", "a number above 0"))),
    ("minutes", asked(minutes=0), "must be above 0"), ("seeds", asked(seeds=[]), "at least one seed"),
    ("space", asked(space=["bsp", "ssp:3"]), "must be axes, such as"),
    ("model", asked(run=Run(model=[(30, 20), (10, 30)], cluster=BASE.cluster)), r"has only shapes.*throughput\(run\)"),
    ("cluster", mapped(cluster="free"), "a map varies a modelled cluster"),
    ("pushes", mapped(pushes=None, seconds=1.0), "a map needs a budget"),
    ("workers", mapped(axes={}, workers=1), "the default axis spread needs two or more"),
    ("axes", mapped(axes={"bandwidth_bit_s": [1e6]}), "a map has two axes"),
    ("bandwith_bit_s", mapped(axes={"bandwith_bit_s": [1e6], "latency_s": [0.0]}), "did you mean 'bandwidth_bit_s'"),
    ("bandwidth_bit_s", mapped(axes={**AXES, "bandwidth_bit_s": 1e6}), "must be a list of values"),
    ("seed", mapped(axes={"seed": {"a": {"latency_s": 0.0}}, "latency_s": [0.0]}), "is a field of Run"),
    ("target_accuracy", mapped(target=1.5), ""),
    ("default", raced("bps"), "did you mean 'bsp'"),
    ("grids", raced(rates=()), "at least one policy to at least one learning rate"),
    ("seeds", raced(seeds=[]), "one or more different seeds"), ("seeds", raced(seeds=[1, 1]), "one or more different"),
    ("tie", raced(tie=0.0), "must be a share above 0"), ("sure", raced(sure=1.0), "below 1"),
    ("target", raced(), "an easier target, or more pushes"),
]  # fmt: skip


def test_what_is_no_question_is_refused_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    check_refused(ROWS)
    assert not list(tmp_path.iterdir())
