"""What tuned rates say: pushes to an accuracy, as a table and in sentences that are computed from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.lab.plots.theme import sync_name
from pslab.lab.records.time_to_accuracy import arrival, ends
from pslab.lab.studies.staleness import CONSGD, PLAIN, PUBLISHED, cells, heterogeneity, mean_factor, name, scalar

if TYPE_CHECKING:
    from pslab.lab.records.record import Result


def arrivals(results: Iterable[Result], accuracy: float) -> pd.DataFrame:
    """A row for each policy, heterogeneity, rate and learning rate: median, low and high pushes to the accuracy (0 to
    1; infinite where it is not reached), how many seeds `reached` it, and the median final accuracy."""
    return pd.DataFrame([
        {"policy": policy, "heterogeneity": level, "rate": rate, "learning_rate": step,
         "pushes": float(np.median(at)), "low": min(at), "high": max(at), "seeds": len(at),
         "reached": sum(map(math.isfinite, at)), "final_accuracy": ends(group)}
        for (policy, level, rate), grid in cells(results).items() for step, group in grid.items()
        for at in [[arrival(result, accuracy, "pushes") for result in group]]
    ])  # fmt: skip


def readable(results: Iterable[Result], accuracy: float) -> pd.DataFrame:
    """Pushes to the accuracy for people: a row for each policy and rate, a column for each heterogeneity."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in arrivals(results, accuracy).to_dict("records"):
        key = sync_name(row["policy"]), row["rate"]
        rows.setdefault(key, {})[f"HL {row['heterogeneity']:g}"] = _cell(row)
    index = pd.MultiIndex.from_tuples(list(rows), names=["policy", "rate"])
    frame = pd.DataFrame(list(rows.values()), index=index)
    return frame.rename_axis(columns=f"pushes to {100 * accuracy:g} % at learning rate")


def _cell(row: Mapping[Any, Any]) -> str:
    at = f" at {row['learning_rate']:g}"
    if not math.isfinite(row["pushes"]):
        return f"not reached ({row['reached']} of {row['seeds']} seeds){at}"
    high = f"{row['high']:.0f}" if math.isfinite(row["high"]) else "never"
    return f"{row['pushes']:.0f}" + (f" ({row['low']:.0f} to {high})" if row["seeds"] > 1 else "") + at


def steps(results: Iterable[Result]) -> pd.DataFrame:
    """How far a push really moves, at the largest heterogeneity: the learning rate, the mean factor of the rates that
    are a factor and nothing else, and their product."""
    found = list(results)
    worst = max(heterogeneity(r.run) for r in found)
    rows = [
        {"policy": sync_name(policy), "rate": rate, "learning rate": f"{step:g}",
         "mean factor": f"{mean_factor(group):.3f}", "learning rate x factor": f"{step * mean_factor(group):.3f}"}
        for (policy, level, rate), grid in cells(found).items() if level == worst
        for step, group in grid.items() if scalar(group[0].run)
    ]  # fmt: skip
    return pd.DataFrame(rows).set_index(["policy", "rate"])


# -- sentences -------------------------------------------------------------------------------------


def findings(trials: Iterable[Result], results: Iterable[Result], accuracy: float) -> str:
    """What the runs say of the rates, one finding a line."""
    tried, found = list(trials), list(results)
    table = arrivals(found, accuracy)
    worst = table.heterogeneity.max()
    lines = [_policy(table, policy, worst, accuracy) for policy in dict.fromkeys(table.policy)]
    lines += [_published(table), _one_rate(tried, accuracy), _constants(tried), _staleness(found), _edges(tried, table)]
    return "\n".join(filter(None, lines))


def _policy(table: pd.DataFrame, policy: str, worst: float, accuracy: float) -> str:
    """The rates under one policy where the workers are most uneven, and what became of the best one's lead."""
    own = table[(table.policy == policy) & (table.heterogeneity == worst)].sort_values("pushes", kind="stable")
    there = own[np.isfinite(own.pushes)]
    told = f"{sync_name(policy)}, heterogeneity {worst:g}"
    if there.empty:
        return f"{told}: no rate reaches {100 * accuracy:g} %."
    first, missed = there.iloc[0], list(own.rate[~np.isfinite(own.pushes)])
    text = f"{told}: {first['rate']} is first at {100 * accuracy:g} %, after {_count(first)}"
    plain = own[own.rate == PLAIN]
    if len(plain) and first["rate"] != PLAIN:
        other = plain.iloc[0]
        text += f"; {PLAIN} needs {_count(other)}" if math.isfinite(other.pushes) else f"; {PLAIN} does not get there"
        text += ", and their seeds overlap" if first.high >= other.low else ""
        text += _lead(table, policy, first["rate"])
    text += f"; not there: {', '.join(missed)}" if missed and missed != [PLAIN] else ""
    return f"{text}."


def _lead(table: pd.DataFrame, policy: str, rate: str) -> str:
    """How a rate's lead over SSP-SGD compares with that among the most equal workers."""
    least, worst = table.heterogeneity.min(), table.heterogeneity.max()
    own = table[table.policy == policy].set_index(["heterogeneity", "rate"]).pushes
    leads = [own[level, PLAIN] / own[level, rate] for level in (worst, least)]
    if least == worst or not all(map(math.isfinite, leads)):
        return ""
    return f": {leads[0]:.1f} times as many, against {leads[1]:.1f} times at heterogeneity {least:g}"


def _count(row: Any) -> str:
    high = f"{row.high:.0f}" if math.isfinite(row.high) else "never"
    return f"{row.pushes:.0f} pushes" + (f" ({row.low:.0f} to {high})" if row.seeds > 1 else "")


def _published(table: pd.DataFrame) -> str:
    """The most that a variant of DynSGD saves against SSP-SGD, each at its own learning rate."""
    best, least = _ratios(table)
    if not best:
        return ""
    ratio, row = best
    verdict = "is reached" if ratio >= PUBLISHED else "is not reached"
    text = (f"With its own learning rate, {row['rate']} needs at most {ratio:.2f} times fewer pushes than {PLAIN} "
            f"({sync_name(row['policy'])}, heterogeneity {row['heterogeneity']:g})")  # fmt: skip
    if least < 1:
        text += f", and at worst a DynSGD needs {1 / least:.2f} times more"
    return f"{text}: the published up to {PUBLISHED} times fewer iterations {verdict} here."


def _ratios(table: pd.DataFrame) -> tuple[tuple[float, Any] | None, float]:
    """SSP-SGD's pushes over DynSGD's: the highest with its row, and the lowest; where both get there."""
    plain = table[table.rate == PLAIN].set_index(["policy", "heterogeneity"]).pushes.to_dict()
    rows = [(plain.get((row["policy"], row["heterogeneity"]), math.inf) / row["pushes"], row)
            for row in table.to_dict("records") if row["rate"].startswith("DynSGD")]  # fmt: skip
    there = [(ratio, row) for ratio, row in rows if 0 < ratio < math.inf]
    return (max(there, key=lambda pair: pair[0]) if there else None), min((ratio for ratio, _ in there), default=1.0)


def _one_rate(trials: list[Result], accuracy: float) -> str:
    """The trials at the learning rate that most grids have: what a comparison without tuning would say."""
    table = arrivals(trials, accuracy)
    rates = table.groupby("learning_rate").rate.nunique()
    common = float(str(rates.idxmax()))
    if rates.max() < 3:
        return ""
    worst = table.heterogeneity.max()
    own = table[(table.learning_rate == common) & (table.heterogeneity == worst)]
    parts = []
    for policy, rows in own.groupby("policy", sort=False):
        there = rows[np.isfinite(rows.pushes)].sort_values("pushes", kind="stable")
        missed = list(rows.rate[~np.isfinite(rows.pushes)])
        words = [f"{row['rate']} {row['pushes']:.0f}" for row in there.to_dict("records")]
        words += [f"not there: {' and '.join(missed)}"] if missed else []
        parts.append(f"{sync_name(policy)}: {', '.join(words)}")
    told = "; ".join(parts)
    return (f"Untuned, all of them at the learning rate {common:g}, heterogeneity {worst:g}, one seed: pushes to "
            f"{100 * accuracy:g} % under {told}.")  # fmt: skip


def _constants(trials: list[Result]) -> str:
    """SSP-SGD and CONSGD at W times its learning rate are one run."""
    by_step: dict[tuple[str, float, float], dict[str, Result]] = {}
    for result in trials:
        run, rate = result.run, name(result.run)
        if rate in (PLAIN, CONSGD):
            step = run.learning_rate / (run.workers if rate == CONSGD else 1)
            by_step.setdefault((str(run.sync), heterogeneity(run), round(step, 12)), {})[rate] = result
    pairs = [pair for pair in by_step.values() if len(pair) == 2]
    if not pairs:
        return ""
    equal = sum(p[PLAIN].manifest["weights_sha256"] == p[CONSGD].manifest["weights_sha256"] for p in pairs)
    return (f"{CONSGD} is {PLAIN} at 1/W of the learning rate: with W times the learning rate its final weights are "
            f"equal to the bit in {equal} of {len(pairs)} pairs of trials.")  # fmt: skip


def _staleness(results: list[Result]) -> str:
    """How the staleness grows with heterogeneity: its mean, and its largest."""
    found: dict[str, dict[float, np.ndarray]] = {}
    for (policy, level, _), grid in cells(results).items():
        stale = np.concatenate([r.pushes.staleness.to_numpy() for group in grid.values() for r in group])
        found.setdefault(policy, {}).setdefault(level, stale)
    parts = []
    for policy, levels in found.items():
        low, high = min(levels), max(levels)
        parts.append(f"{sync_name(policy)} {levels[low].mean():.1f} and {levels[high].mean():.1f} (largest "
                     f"{levels[low].max()} and {levels[high].max()})")  # fmt: skip
    low, high = min(map(min, found.values())), max(map(max, found.values()))
    return f"Mean staleness at heterogeneity {low:g} and {high:g}: {'; '.join(parts)}."


def _edges(trials: list[Result], table: pd.DataFrame) -> str:
    """How many chosen learning rates lie at an end of their grid: there a wider grid could do better."""
    grids = {key: set(grid) for key, grid in cells(trials).items()}
    rows = [(grids[row["policy"], row["heterogeneity"], row["rate"]], row) for row in table.to_dict("records")]
    counts: dict[str, int] = {}
    for grid, row in rows:
        if len(grid) > 1 and row["learning_rate"] in (min(grid), max(grid)):
            counts[row["rate"]] = counts.get(row["rate"], 0) + 1
    if not counts:
        return "No chosen learning rate lies at an end of its grid."
    told = ", ".join(f"{rate} {count}" for rate, count in counts.items())
    return f"Of {len(rows)} chosen learning rates {sum(counts.values())} lie at an end of their grid: {told}."
