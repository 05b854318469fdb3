"""What 30_elastic found, in sentences made from its records; where a claim does not hold, they say so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pslab.lab.plots.theme import SPACE, sync_name
from pslab.lab.records.time_to_accuracy import best_rate, ends, middle
from pslab.lab.studies import elastic_tables as tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pslab.lab.records.record import Result
    from pslab.lab.studies.searching import Searched


def findings(searched: Searched, results: Mapping[str, Sequence[Result]]) -> str:
    """A list in Markdown, one entry for each part of the notebook."""
    said = [_search(searched), _throughput(results["speeds"]), _pair(results["pair"]),
            _stragglers(results["stragglers"]), _accuracy(results["accuracy"]), _horizon(results["horizon"])]
    return "\n".join(f"- {text}" for text in said).replace(SPACE, " ")


def _search(searched: Searched) -> str:
    table, grows = tables.search_times(searched), tables.growth(searched)
    at = table[(table.workers == table.workers.max()) & (table.ends == table.ends.max())].set_index("search").seconds
    exact = at.drop([each for each in ("grid", "fullgrid") if each in at]).sort_values()
    order = " < ".join(tables.NAMES[str(each)] for each in exact.index)
    text = f"**Search.** At n = {table.workers.max()}, R = {table.ends.max()} the exact searches rank {order}"
    if {"zipline", "optbs"} <= set(at.index):
        published = tables.ICDM["zipline"][1000, 150] / tables.DSAA["optbs"][1000, 150]
        text += (f"; ZipLine takes {at['zipline'] / at['optbs']:.1f} times as long as OptBS (published: "
                 f"{published:.1f}), and grows as n^{grows.workers['zipline']:.2f} against "
                 f"n^{grows.workers['optbs']:.2f}")  # fmt: skip
    excess = table[table.search.isin(["grid", "fullgrid"])].groupby("search").excess.mean()
    worse = ", ".join(f"{tables.NAMES[str(n)]} by {100 * share:.0f} %" for n, share in excess.items())
    text += f". The heuristics' spreads are worse than the least: {worse}" if worse else ""
    slope = grows.workers.get("zipline", math.nan)
    if slope < 1.6:
        text += ". The quadratic growth is not seen up to here: a search in a list is quick beside all the rest"
    return text + "."


def _throughput(results: Sequence[Result]) -> str:
    table = tables.throughput(results)
    elastic, bsp, asp = (table.loc[sync_name(each)] for each in ("elastic:15", "bsp", "asp"))
    literal, ssp = table.loc[sync_name("dssp:3,12,literal")], table.loc[sync_name("ssp:3")]
    slowness = "and so stays" if literal.rate < elastic.rate - 0.02 else "and comes"
    return (f"**Throughput**, permanently unequal speeds. ElasticBSP: {elastic.pushes} pushes, "
            f"{100 * elastic.rate:.0f} % of ASP's {asp.pushes}, waiting {100 * elastic.waiting:.1f} %; BSP "
            f"{bsp.pushes} and {100 * bsp.waiting:.0f} %, SSP(3) {ssp.pushes}: a bound is a head start, no more. "
            "DSSP to the letter "
            f"grants to the fastest worker alone, {slowness} at {100 * literal.rate:.0f} %, and its lead of "
            f"{literal.lead} is no bound of 15.")  # fmt: skip


def _pair(results: Sequence[Result]) -> str:
    over, found = tables.speed_ups(results), tables.pairs(results)
    at = 2.0 if 2.0 in over.index else float(over.index[-1])
    literal, asp, text = (over.loc[at][sync_name(each)] for each in ("dssp:3,12,literal", "asp", "dssp:3,12"))
    lead = found[(found.ratio == at) & (found.policy == sync_name("dssp:3,12,literal"))].lead.iloc[0]
    needed = 2 * tables.DSSP_PAPER - 1
    told = "is not reached" if literal < tables.DSSP_PAPER - 0.05 else "is reached"
    return (f"**Two workers, 1:{at:g}.** SSP(15) takes {literal:.2f} times as long as DSSP to the letter and "
            f"{asp:.2f} times as long as ASP; the published {tables.DSSP_PAPER:.2f} {told} at this ratio. In the long "
            f"run ASP is (1 + r) / 2 times as fast, so it takes speeds of 1:{needed:.1f}. DSSP that keeps its bound "
            f"gets {text:.2f} times; the letter's lead grows to {lead}.")  # fmt: skip


def _stragglers(results: Sequence[Result]) -> str:
    table = tables.stragglers(results).groupby(["kind", "policy"])[["rate", "waiting"]].median()
    bsp, three, most = (sync_name(each) for each in ("bsp", "ssp:3", "ssp:15"))
    share = {(k, p): 100 * table.rate[k, p] for k in ("permanent", "transient") for p in (bsp, three, most)}
    short, long_ = ([f"{share[k, p]:.0f} %" for p in (three, most, bsp)] for k in ("transient", "permanent"))
    return (f"**Stragglers.** Against short stalls SSP(3) makes {short[0]} of ASP's pushes and SSP(15) {short[1]}, BSP "
            f"{short[2]}; against a permanent straggler {long_[0]} and {long_[1]}, BSP {long_[2]}: there staleness "
            "buys next to nothing.")  # fmt: skip


def _accuracy(results: Sequence[Result]) -> str:
    groups = tables.by_rate(results)
    goal, common = tables.goal_of(groups), tables.common_rate(groups)
    said = []
    for weight in dict.fromkeys(weight for _, weight in groups):
        own = {policy: rates for (policy, each), rates in groups.items() if each == weight}
        word = "1/W" if weight is None else f"{weight:g}"
        least = min(own, key=lambda policy: ends(own[policy][common]))
        times = {p: middle(r[best_rate(r, goal)], goal) for p, r in own.items()}
        order = ", ".join(f"{sync_name(p)} {s:.1f} s" if math.isfinite(s) else f"{sync_name(p)} never"
                          for p, s in sorted(times.items(), key=lambda item: item[1]))  # fmt: skip
        low = f"{100 * ends(own[least][common]):.0f} %"
        said.append(f"With push weight {word} and one rate for all ({common:g}) the lowest end is {sync_name(least)} "
                    f"at {low}; at their own best rates {100 * goal:g} % is reached by {order}")  # fmt: skip
    return f"**Accuracy.** {'. '.join(said)}.{_twins(results)}"


def _twins(results: Sequence[Result]) -> str:
    """Weight w at rate r and 1/W at w W r are the same training: how many such pairs ended equal to the bit."""
    plain = {(str(r.run.sync), r.run.learning_rate, r.run.seed): r for r in results if r.run.push_weight is None}
    heavy = [(r, r.run.learning_rate * r.run.push_weight * r.run.workers) for r in results if r.run.push_weight]
    pairs = [(r, plain[key]) for r, rate in heavy if (key := (str(r.run.sync), rate, r.run.seed)) in plain]
    if not pairs:
        return ""
    equal = sum(a.manifest["weights_sha256"] == b.manifest["weights_sha256"] for a, b in pairs)
    return (f" The weight is nothing but a rate: of {len(pairs)} runs whose weight times rate equals another's, "
            f"{equal} ended with the same weights to the bit.")  # fmt: skip


def _horizon(results: Sequence[Result]) -> str:
    table = tables.horizons(results)
    said = []
    for workers, own in table.groupby("workers"):
        planned, bsp = own[own.ends > 0], own[own.policy == sync_name("bsp")].iloc[0]
        dear = planned[planned.search_s == planned.search_s.max()]
        cheap = planned[planned.search_s == planned.search_s.min()]
        low, high = cheap.rate.min(), cheap.rate.max()
        lost = (cheap.set_index("ends").rate - dear.set_index("ends").rate).max()
        few = ", ".join(str(e) for e in cheap[cheap.supersteps < 3].ends)
        slower = ", ".join(str(e) for e in dear[dear.rate < bsp.rate].ends)
        saves = f"and at R = {slower} more than all that it saves" if slower else "less than it saves at every R"
        short = f". The run is too short for R = {few}: fewer than three barriers fell" if few else ""
        whatever = f"{100 * low:.0f} to {100 * high:.0f} % of ASP's pushes, R from {own.ends[own.ends > 0].min()} on"
        said.append(f"{workers} workers: {whatever} (BSP {100 * bsp.rate:.0f} %); a search at "
                    f"{1e6 * dear.search_s.iloc[0]:g} µs a point instead of "
                    f"{1e6 * cheap.search_s.iloc[0]:g} costs up to {100 * lost:.1f} points, "
                    f"{saves}; it would cost all of that at {1e6 * planned.break_even_s.min():.0f} µs"
                    f"{short}")  # fmt: skip
    return f"**R and the search.** {'. '.join(said)}."
