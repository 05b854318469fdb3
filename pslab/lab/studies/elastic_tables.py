"""What the runs of 30_elastic say, as tables and in words; and what the papers say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.lab.plots.theme import SPACE, parts, sync_name
from pslab.lab.records.intervals import common_starts, records
from pslab.lab.records.time_to_accuracy import best_rate, ends, final, middle
from pslab.lab.studies.asked import averages

if TYPE_CHECKING:
    from pslab.config.run import Run
    from pslab.lab.records.record import Result
    from pslab.lab.studies.searching import Searched

NAMES = {"zipline": "ZipLine", "opt": "Opt", "optbs": "OptBS", "lru": "LRU", "sweep": "sweep", "grid": "GridScan",
         "fullgrid": "FullGridScan"}  # fmt: skip
#: (workers, ends) -> seconds. C++11, Xeon E5-2620 v3.
ICDM: dict[str, dict[tuple[int, int], float]] = {
    "zipline": {(10, 15): 149e-6, (10, 150): 1320e-6, (100, 15): 6370e-6, (100, 150): 0.0499, (1000, 15): 0.253,
                (1000, 150): 2.38},
    "fullgrid": {(10, 15): 1540e-6, (10, 150): 0.0467, (100, 15): 0.0813, (100, 150): 2.15, (1000, 15): 4.04,
                 (1000, 150): 207.0},
    "grid": {(10, 15): 168e-6, (10, 150): 5500e-6, (100, 15): 1110e-6, (100, 150): 0.0438, (1000, 15): 7450e-6,
             (1000, 150): 0.257},
}  # fmt: skip
DSAA: dict[str, dict[tuple[int, int], float]] = {  # read off its figure 3 and the slides
    "opt": {(100, 150): 0.0207, (500, 15): 0.038, (500, 150): 0.204, (1000, 15): 0.094, (1000, 150): 0.774},
    "optbs": {(100, 150): 0.0228, (500, 15): 0.030, (500, 150): 0.170, (1000, 15): 0.077, (1000, 150): 0.560},
}  # fmt: skip
PUBLISHED = {**ICDM, **DSAA}
SOURCES = ("hollow: C++11, Xeon E5-2620 v3; ZipLine, GridScan, FullGridScan: Zhao et al., ICDM 2019, table II; "
           "Opt, OptBS: read off figure 3 of Zhao et al., DSAA 2021, and its slides")  # fmt: skip
DASH = "–"
STRAGGLERS = ("permanent", "transient")
LARGE = 100  # workers from which growth is fitted: below it what is paid once counts
DSSP_PAPER = 5565 / 3016  # seconds to 67 %: SSP(15) over DSSP; Zhao et al., ICDCS 2019, table I
DSSP_SOURCE = "Zhao et al., ICDCS 2019, table I"


# -- search ----------------------------------------------------------------------------------------


def search_times(found: Searched) -> pd.DataFrame:
    """Median seconds, and mean excess of the spread, by search, workers and ends."""
    groups = found.times.groupby(["search", "workers", "ends"], sort=False)
    return groups.agg(seconds=("seconds", "median"), excess=("excess", "mean")).reset_index()


def growth(found: Searched) -> pd.DataFrame:
    """Fitted exponents of time: by workers (from LARGE on, most ends) and by ends (most workers).

    NaN if there is one size alone.
    """
    table = search_times(found)
    rows = {}
    for name, own in table.groupby("search", sort=False):
        rows[str(name)] = {"workers": _slope(own[own.workers >= LARGE], "workers", "ends"),
                           "ends": _slope(own, "ends", "workers")}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index")


def _slope(table: pd.DataFrame, by: str, fixed: str) -> float:
    """By one of the two sizes, where the other one is the largest of which there are several."""
    parts_ = [own for _, own in table.groupby(fixed) if len(own) > 1]
    return exponent(parts_[-1], by) if parts_ else math.nan


def exponent(table: pd.DataFrame, by: str) -> float:
    """The slope of seconds against `by` on logarithmic axes, by least squares; NaN of less than two points."""
    if len(table) < 2:
        return math.nan
    return float(np.polyfit(np.log(table[by].to_numpy(float)), np.log(table.seconds.to_numpy(float)), 1)[0])


def search_table(found: Searched) -> pd.DataFrame:
    """For people: time at the largest size of each search, the paper's, growth, and how much worse its plans are."""
    table, grows = search_times(found), growth(found)
    rows = {}
    for name, own in table.groupby("search", sort=False):
        at = own.sort_values(["workers", "ends"]).iloc[-1]
        paper = PUBLISHED.get(str(name), {}).get((int(at.workers), int(at.ends)))
        by_n, by_r = (float(grows.loc[str(name), by]) for by in ("workers", "ends"))  # type: ignore[arg-type]
        rows[NAMES[str(name)]] = {
            "workers, ends": f"{int(at.workers)}, {int(at.ends)}", "here": ms(at.seconds),
            "published": ms(paper) if paper else DASH, "grows with workers": _power("n", by_n),
            "with ends": _power("R", by_r), "spread over the least": f"{100 * own.excess.mean():+.1f} %"}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index")


def _power(letter: str, value: float) -> str:
    return f"{letter}^{value:.2f}" if math.isfinite(value) else DASH


# -- throughput ------------------------------------------------------------------------------------


def waits(result: Result) -> list[float]:
    """Seconds that each worker waited."""
    table = result.phases[result.phases.phase == "wait"]
    spent = (table.end_s - table.begin_s).groupby(table.worker).sum()
    return [float(spent.get(worker, 0.0)) for worker in range(result.run.workers)]


def waiting(result: Result) -> float:
    """The share of the workers' time that they waited."""
    return sum(waits(result)) / (result.run.workers * float(result.manifest["seconds"]))


def rate(result: Result) -> float:
    """Pushes that the server accepted, per second; those that it dropped are no use."""
    used = int(result.manifest["accepted"]) - int(result.manifest.get("dropped", 0))
    return used / float(result.manifest["seconds"])


def largest_lead(result: Result) -> int:
    """The most iterations that a worker was ahead of the slowest one, when it began one.

    Of events at one instant the lower worker's are first, and a start follows the push that allowed it.
    """
    waits_, pushed, begun = (result.phases[result.phases.phase == name] for name in ("wait", "push", "compute"))
    by = {(w.worker, w.iteration + 1): w.waits_for for w in records(waits_) if w.waits_for >= 0}
    events = [(p.end_s, p.worker, 0, p.worker, p.iteration + 1) for p in records(pushed)]
    events += [(c.begin_s, by.get((c.worker, c.iteration), c.worker), 1, c.worker, c.iteration) for c in records(begun)]
    clocks, most = [0] * result.run.workers, 0
    for _, _, begins, worker, clock in sorted(events):
        if begins:
            most = max(most, clock - min(clocks))
        else:
            clocks[worker] = clock
    return most


def throughput(results: Iterable[Result]) -> pd.DataFrame:
    """Per policy: pushes accepted, dropped, per second against ASP's; waiting, also by worker; lead and staleness."""
    found = list(results)
    free = max(rate(result) for result in found)
    rows = {}
    for result in found:
        rows[name(result.run)] = {
            "pushes": int(result.manifest["accepted"]), "dropped": int(result.manifest.get("dropped", 0)),
            "rate": rate(result) / free, "waiting": waiting(result), "waits_s": waits(result),
            "lead": largest_lead(result), "staleness": float(result.pushes.staleness.mean())}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index")


def throughput_table(results: Iterable[Result]) -> pd.DataFrame:
    """`throughput` for people."""
    rows = {}
    for policy, row in throughput(results).to_dict("index").items():
        lost = f" ({row['dropped']} dropped)" if row["dropped"] else ""
        rows[policy] = {
            "pushes": f"{row['pushes']}{lost}", "of the fastest": f"{100 * row['rate']:.0f} %",
            "waiting": f"{100 * row['waiting']:.1f} %",
            "by worker": ", ".join(f"{s:.1f}" for s in row["waits_s"]) + " s",
            "largest lead": f"{row['lead']}", "mean staleness": f"{row['staleness']:.1f}"}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index")


def pairs(results: Iterable[Result]) -> pd.DataFrame:
    """Two workers: ratio of their speeds, policy, seconds (for equal pushes), lead."""
    return pd.DataFrame([
        {"ratio": _slow(result.run).get(1, 1.0), "policy": name(result.run), "lead": largest_lead(result),
         "seconds": float(result.manifest["seconds"])} for result in results])  # fmt: skip


def speed_ups(results: Iterable[Result], reference: str = "ssp:15") -> pd.DataFrame:
    """Seconds of the reference over those of each policy, a row for each ratio of speeds."""
    table = pairs(results).pivot(index="ratio", columns="policy", values="seconds")
    return table.rdiv(table[sync_name(reference)], axis=0)


def pair_table(results: Iterable[Result], ratio: float = 2.0) -> pd.DataFrame:
    """For people: at one ratio of speeds, seconds for equal pushes, the reference's over them, and the lead."""
    found = pairs(results)
    own = found[found.ratio == ratio].set_index("policy")
    over = speed_ups(results).loc[ratio]
    times = over.map("{:.2f} times".format)
    return pd.DataFrame({"seconds": own.seconds.map("{:.0f} s".format), "SSP(15) takes": times,
                         "largest lead": own.lead.astype(str)}).loc[own.index].rename_axis(None)  # fmt: skip


def stragglers(results: Iterable[Result]) -> pd.DataFrame:
    """Kind, policy, seed, pushes per second against ASP's with that seed, waiting."""
    found = list(results)
    free = {(kind(r.run), r.run.seed): rate(r) for r in found if parts(r.run.sync)[0] == "asp"}
    return pd.DataFrame([
        {"kind": kind(r.run), "policy": name(r.run), "seed": r.run.seed,
         "rate": rate(r) / free[kind(r.run), r.run.seed], "waiting": waiting(r)} for r in found])  # fmt: skip


def straggler_table(results: Iterable[Result]) -> pd.DataFrame:
    """For people: pushes against ASP's, and waiting, by kind and policy; medians over seeds."""
    table = stragglers(results).groupby(["kind", "policy"], sort=False)[["rate", "waiting"]].median()
    policies = list(dict.fromkeys(table.index.get_level_values("policy")))
    words = {"rate": "pushes, of ASP's", "waiting": "waiting"}
    return pd.DataFrame({(words[measure], each): [f"{100 * table[measure][each, policy]:.0f} %" for policy in policies]
                         for measure in words for each in STRAGGLERS}, index=policies)  # fmt: skip


def kind(run: Run) -> str:
    """permanent or transient."""
    return "permanent" if _slow(run) else "transient"


# -- the horizon -----------------------------------------------------------------------------------


def horizons(results: Iterable[Result]) -> pd.DataFrame:
    """workers, policy, ends (0 for policies that do not plan), search_s, rate (against ASP's), waiting, supersteps,
    and break_even_s: what a predicted point may cost until BSP is as fast, were the rest as in this run."""
    found = list(results)
    seconds = {(r.run.workers, parts(r.run.sync)[0]): r for r in found if parts(r.run.sync)[0] in ("bsp", "asp")}
    rows = []
    for r in found:
        family, given, _ = parts(r.run.sync)
        cost, ends = float(_cluster(r.run).get("search_s", 0.0)), int(given[0]) if family == "elastic" else 0
        bsp, asp = seconds[r.run.workers, "bsp"], seconds[r.run.workers, "asp"]
        supersteps = len(common_starts(r)) if ends else 0
        points = (supersteps + 1) * r.run.workers * ends  # the last plan's barrier is behind the end
        saved_s = int(r.manifest["accepted"]) * (1 / rate(bsp) - 1 / rate(r)) + points * cost
        rows.append({"workers": r.run.workers, "policy": name(r.run), "ends": ends, "search_s": cost,
                     "rate": rate(r) / rate(asp), "waiting": waiting(r), "supersteps": supersteps,
                     "break_even_s": saved_s / points if points else math.nan})  # fmt: skip
    return pd.DataFrame(rows)


def horizon_table(results: Iterable[Result]) -> pd.DataFrame:
    """`horizons` for people, a row for each number of workers and R."""
    rows = {}
    table = horizons(results)
    costs = sorted(set(table[table.ends > 0].search_s))
    for (workers, policy), own in table.groupby(["workers", "policy"], sort=False):
        row: dict[str, Any] = {}
        for cost in costs:  # a policy that does not search pays none of them
            each = own[own.search_s == cost].iloc[0] if own.ends.any() else own.iloc[0]
            row[f"pushes, {1e6 * cost:g} µs"] = f"{100 * each.rate:.1f} %"
            row[f"waiting, {1e6 * cost:g} µs"] = f"{100 * each.waiting:.1f} %"
        low = own.break_even_s.min()
        row["barriers"] = f"{own.supersteps.iloc[0]}" if own.ends.any() else DASH
        row["as slow as BSP at"] = f"{1e6 * low:.0f} µs" if math.isfinite(low) else DASH
        rows[f"{workers} workers, {policy}"] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns="pushes of ASP's; µs a predicted point")


# -- accuracy --------------------------------------------------------------------------------------

Group = tuple[str, float | None]  # a policy, its push weight


def by_rate(results: Iterable[Result]) -> dict[Group, dict[float, list[Result]]]:
    """Results by policy and push weight, then by learning rate; BSP, which has no weight, under each weight."""
    found = list(results)
    weights = list(dict.fromkeys(r.run.push_weight for r in found if not averages(r.run.sync))) or [None]
    groups: dict[Group, dict[float, list[Result]]] = {}
    for weight in weights:
        for r in found:
            if averages(r.run.sync) or r.run.push_weight == weight:
                groups.setdefault((str(r.run.sync), weight), {}).setdefault(r.run.learning_rate, []).append(r)
    return groups


def goal_of(groups: dict[Group, dict[float, list[Result]]]) -> float:
    """The highest whole per cent that each policy gets to in the end, at one of its rates."""
    return math.floor(100 * min(max(map(ends, rates.values())) for rates in groups.values())) / 100


def common_rate(groups: dict[Group, dict[float, list[Result]]]) -> float:
    """BSP's best rate, or that of the policy that is first."""
    return best_rate(groups[next(iter(groups))], goal_of(groups))


def accuracy_table(results: Iterable[Result]) -> pd.DataFrame:
    """For people: per policy and push weight, at BSP's best rate and at its own: rate, time to the goal, last value."""
    groups = by_rate(results)
    goal, common = goal_of(groups), common_rate(groups)
    rows = {}
    for (policy, _), rates in groups.items():
        own = best_rate(rates, goal)
        edge = " (edge)" if len(rates) > 1 and own in (min(rates), max(rates)) else ""
        rows[sync_name(policy).replace(SPACE, " "), _weight_word(rates)] = {
            f"at rate {common:g}: until {100 * goal:g} %": _until(rates[common], goal),
            f"at rate {common:g}: in the end": _ends(rates[common]), "own best rate": f"{own:g}{edge}",
            f"until {100 * goal:g} %": _until(rates[own], goal), "in the end": _ends(rates[own])}  # fmt: skip
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(list(rows))
    return table


def _weight_word(rates: dict[float, list[Result]]) -> str:
    run = next(iter(rates.values()))[0].run
    if averages(run.sync):
        return "mean"
    return "weight 1/W" if run.push_weight is None else f"weight {run.push_weight:g}"


def _until(results: Sequence[Result], goal: float) -> str:
    seconds = middle(results, goal)
    return f"{seconds:.1f} s" if math.isfinite(seconds) else "never"


def _ends(results: Sequence[Result]) -> str:
    lasts = [100 * final(result) for result in results]
    return f"{np.median(lasts):.1f} % ({min(lasts):.1f} to {max(lasts):.1f})"


# -- parts -----------------------------------------------------------------------------------------


def name(run: Run) -> str:
    """The policy's name."""
    return sync_name(run.sync)


def ms(seconds: float) -> str:
    """``"0.12 ms"``, ``"2.4 s"``."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _cluster(run: Run) -> dict[str, Any]:
    return dict(run.cluster) if not isinstance(run.cluster, str) else {}


def _slow(run: Run) -> dict[int, float]:
    return {int(worker): float(factor) for worker, factor in dict(_cluster(run).get("slow", {})).items()}
