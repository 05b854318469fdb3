"""Tables of an observation, and what they say in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from pslab.lab.plots.theme import prune_name

if TYPE_CHECKING:
    from pslab.lab.studies.observation import Observed

SOURCE = "Tsai 2018"
SOURCE_SHARE, SOURCE_RATIO = 0.25, 30  # the standard deviation: of the computation's time; CPU against GPU

GAUSSIAN = {"entries": "", "exactly zero": "", "kurtosis": "3", "beyond 1σ": "31.7 %", "beyond 2σ": "4.55 %",
            "beyond 3σ": "0.27 %", "squared norm in the top 1 %": "8.4 %"}  # fmt: skip


def costs(seen: Observed) -> pd.DataFrame:
    """Per device and operation: median seconds and share of the gradient's; lowest and highest share of a round."""
    rounds = _shares(seen.costs, ["device", "round"])
    spread = rounds.groupby(["device", "operation"], sort=False).share.agg(["min", "max"]).reset_index()
    found = _shares(seen.costs, ["device"]).merge(spread, on=["device", "operation"])
    return found.assign(share_low=found[["share", "min"]].min(axis=1), share_high=found[["share", "max"]].max(axis=1))


def _shares(times: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The median of each operation's seconds, and its share of the gradient's median."""
    found = times.groupby([*keys, "operation"], sort=False).seconds.median().reset_index()
    gradient = found[found.operation == "gradient"].drop(columns="operation")
    found = found.merge(gradient, on=keys, suffixes=("", "_gradient"))
    return found.assign(share=found.seconds / found.seconds_gradient)


def layer_table(seen: Observed) -> pd.DataFrame:
    """Per layer, the median over all observed iterations, beside what a Gaussian would have."""
    rows = {"Gaussian": dict(GAUSSIAN)}
    for layer, own in seen.layers.groupby("layer", sort=False):
        middle = own.drop(columns="layer").median()
        rows[str(layer)] = {
            "entries": f"{middle.entries:.0f}", "exactly zero": f"{100 * middle.zeros / middle.entries:.1f} %",
            "kurtosis": f"{middle['kurtosis']:.0f}",
            **{f"beyond {k}σ": f"{100 * middle[f'tail{k}']:.3g} %" for k in (1, 2, 3)},
            "squared norm in the top 1 %": f"{100 * middle.top_share:.0f} %"}  # fmt: skip
    return pd.DataFrame(rows).T


def rule_table(seen: Observed) -> pd.DataFrame:
    """Per rule: what it sends of the whole model, and what of the squared norm."""
    rows = {}
    for rule, own in seen.rules.assign(share=100 * seen.rules.sent / seen.rules.entries).groupby("rule", sort=False):
        sums = own.groupby("iteration")[["sent", "entries"]].sum()
        whole, layers = 100 * sums.sent / sums.entries, own.groupby("layer").share.median()
        rows[prune_name(str(rule))] = {
            "sent of the whole model": f"{whole.median():.3g} %",
            "over iterations": f"{whole.min():.3g} to {whole.max():.3g} %",
            "over layers": f"{layers.min():.3g} to {layers.max():.3g} %",
            "squared norm kept": f"{100 * own.norm_share.median():.0f} %"}  # fmt: skip
    return pd.DataFrame(rows).T


def findings(seen: Observed) -> str:
    """What was measured, in sentences, beside what the source claims."""
    layers, looks = seen.layers, seen.layers.iteration.nunique()
    carried, tail = 100 * layers.top_share, 100 * layers.tail3
    norm = f"{carried.min():.0f} to {carried.max():.0f} % of the squared norm (median {carried.median():.0f} %)"
    beyond = f"{tail.min():.1f} to {tail.max():.1f} % of the entries; of a Gaussian 0.27 %"
    kurtosis = f"Kurtosis: median {layers['kurtosis'].median():.0f}; of a Gaussian 3"
    lines = [f"In every layer, at each of {looks} iterations, the largest 1 % carry {norm}; of a Gaussian 8 %.",
             f"Beyond three standard deviations lie {beyond}. {kurtosis}."]  # fmt: skip
    table = costs(seen).set_index(["device", "operation"])
    for device in dict.fromkeys(table.index.get_level_values("device")):
        own = table.loc[device].share.drop(index="gradient") * 100
        rules = own.drop(index="deviation")
        least, most = (prune_name(str(name)) for name in (rules.idxmin(), rules.idxmax()))
        lines.append(f"On the {'GPU' if device == 'cuda' else 'CPU'}, selection takes {rules.min():.0f} % ({least}) to "
                     f"{rules.max():.0f} % ({most}) of forward and backward; the standard deviation alone "
                     f"{own['deviation']:.0f} %.")  # fmt: skip
    said = claimed(seen)
    return "\n".join([*lines, f"{said[0].upper()}{said[1:]}."])


def claimed(seen: Observed) -> str:
    """The source's claim beside what was measured here."""
    seconds = seen.costs[seen.costs.operation == "deviation"].groupby("device").seconds.median()
    measured = "no GPU here to measure it on"
    if "cuda" in seconds.index:
        measured = f"here {seconds['cpu'] / seconds['cuda']:.1f} times as fast, against one thread"
    return (f"source, {SOURCE}: the standard deviation uses {SOURCE_SHARE:.0%} of the computation's time, and a GPU is "
            f"{SOURCE_RATIO} times as fast at it as a CPU ({measured})").replace("%", " %")  # fmt: skip
