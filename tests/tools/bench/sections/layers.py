"""Requests layer by layer on real processes: their cost where nothing can be hidden, and what slow links let them hide.

The latter is compared with the same run in virtual time.
"""

from __future__ import annotations

from functools import partial

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.runs.calibrate import calibrate
from pslab.lab.runs.resolve import resolve
from tools.bench.measure import Row, alternated

SECTION = "6 layers"
WORKERS, BATCH_SIZE = 2, 128
FREE_BAR, AGREEMENT = 1.05, 0.15
SLOWER = 2.5  # emulated compute times, in calibrated ones: what two workers and a server keep up with on two cores
BANDWIDTHS = {"2 Gbit/s": 2e9, "1 Gbit/s": 1e9}


def rows(quick: bool) -> list[Row]:
    """Time per iteration."""
    return [*_free(3 if quick else 9), *_linked(1 if quick else 3)]


def _free(repeats: int) -> list[Row]:
    found = []
    for sync in ("bsp", "asp"):
        run = Run(workers=WORKERS, batch_size=BATCH_SIZE, sync=sync, pushes=240, eval_every=240, learning_rate=0.01)
        spent = alternated({ranges: partial(_iteration_s, run.but(ranges=ranges)) for ranges in ("whole", "layers")},
                           repeats)  # fmt: skip
        found.append(Row(SECTION, f"{sync}, W={WORKERS}, batch {BATCH_SIZE}, no links: layers", 1e3 * spent["layers"],
                         "ms", "the whole model at once", spent["layers"] / spent["whole"], FREE_BAR))  # fmt: skip
    return found


def _linked(repeats: int) -> list[Row]:
    short = Run(workers=WORKERS, batch_size=BATCH_SIZE // 2, sync="asp", pushes=120, eval_every=120, ranges="layers",
                learning_rate=0.01)  # fmt: skip
    costs = calibrate(short)
    costs |= {"compute_s": SLOWER * costs["compute_s"], "compute_sigma": 0.0, "latency_s": 5e-4}
    found = []
    for words, bandwidth in BANDWIDTHS.items():
        for sync, ranges in (("bsp", "whole"), ("bsp", "layers"), ("asp", "layers"), ("asp", "layers:100000")):
            run = short.but(sync=sync, ranges=ranges, cluster={**costs, "bandwidth_bit_s": bandwidth})
            engines = {engine: partial(_iteration_s, run.but(engine=engine)) for engine in ("local", "timing")}
            spent = alternated(engines, repeats)
            ratio = spent["local"] / spent["timing"]
            found.append(Row(SECTION, f"{sync}, W={WORKERS}, {words}: {ranges}", 1e3 * spent["local"], "ms",
                             "virtual time", ratio, 1 + AGREEMENT))  # fmt: skip
    return found


def _iteration_s(run: Run) -> float:
    return float(execute(resolve(run), lambda news: None).facts["seconds"]) * run.workers / (run.pushes or 1)
