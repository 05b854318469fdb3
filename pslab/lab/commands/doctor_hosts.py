"""pslab doctor --cluster: the problems of a cluster's hosts, and the emulated cluster that equals it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from pslab.config.cluster import Cluster
from pslab.config.fleet import PLACES, Fleet
from pslab.config.run import Run
from pslab.engines.processes.fleets.link_speed import LinkSpeeds
from pslab.errors import ConfigError, RunError
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, Finding
from pslab.lab.runs.calibrate import calibrate, measure_links

EXACT_S = 1e-3  # a bound of clocks above which the split between push and pull says little
SLOW = 0.5  # of the median: a way that is so much slower than the others


def examine(cluster: str, write: str | None = None) -> Iterator[Finding]:
    """Each finding, as soon as it is made. The run in virtual time that predicts this cluster goes to the file `write`.

    Raises:
        ConfigError: `cluster` names no file of hosts and no fleet without shared memory.
    """
    run = Run(fleet=cluster) if cluster in PLACES else Run(cluster=cluster)
    if (fleet := Fleet.of(run.fleet)).place == "local":
        raise ConfigError("cluster", cluster, "shares memory, and has no network: name loopback, or a cluster.yaml")
    try:
        ways = measure_links(run)
    except RunError as error:
        yield Finding("processes", PROBLEM, str(error), "the same Python, torch and pslab on every host; `network` "
                      "and `ports` that each of them reaches: see docs/many-machines.md")  # fmt: skip
        return
    yield _processes(ways)
    yield _ports(ways, fleet)
    yield _cores(ways, fleet)
    yield _gpus(ways, fleet)
    yield _clocks(ways)
    yield _links(ways)
    try:
        costs = calibrate(run, links=ways)
    except RunError as error:
        yield Finding("a run", PROBLEM, str(error), f"try it: pslab run --cluster {cluster}")
        return
    yield _prediction(run, costs, write)


def _processes(ways: LinkSpeeds) -> Finding:
    on = Counter(host.name for host in ways.hosts)
    each = ", ".join(f"{count} on {name}" for name, count in on.items())
    pythons = sorted({host.python for host in ways.hosts})
    found = f"{len(ways.hosts)} processes, {each}; Python {' and '.join(pythons)}, torch {ways.hosts[0].torch}"
    if len(pythons) > 1:
        return Finding("processes", NOTE, found, "one patch release of Python on all hosts rules out one difference")
    return Finding("processes", OK, found)


def _cores(ways: LinkSpeeds, fleet: Fleet) -> Finding:
    wanted, there = dict[str, float](), {host.name: host.cores for host in ways.hosts}
    for host in ways.hosts:
        cpus = fleet.worker_cpus if host.who.startswith("worker") else fleet.server_cpus
        wanted[host.name] = wanted.get(host.name, 0.0) + cpus
    short = [f"{name} has {there[name]:g} for {count:g}" for name, count in wanted.items() if count > there[name]]
    if short:
        return Finding("cores", NOTE, "; ".join(short), "processes of one host compute in turns: use fewer workers")
    return Finding("cores", OK, ", ".join(f"{name} has {there[name]:g} for {n:g}" for name, n in wanted.items()))


def _ports(ways: LinkSpeeds, fleet: Fleet) -> Finding:
    """All ports were free, and every process was reached: otherwise no link was measured."""
    on = {host.name: sorted(other.port for other in ways.hosts if other.name == host.name) for host in ways.hosts}
    each = "; ".join(f"{name}: {', '.join(map(str, ports))}" for name, ports in on.items())
    found = f"every process was reached in {fleet.network}, at {each}"
    first, last = fleet.port_range
    most = 1 + max(map(len, on.values()))  # the notebook's process has one, too
    if last and last - first + 1 < 2 * most:
        advice = f"another run beside this one, or a process in a dead one's place, may find none free: name {2 * most}"
        return Finding("ports", NOTE, f"{found}; {most} of the {last - first + 1} of {fleet.ports} are taken", advice)
    return Finding("ports", OK, found)


def _gpus(ways: LinkSpeeds, fleet: Fleet) -> Finding:
    workers = [host for host in ways.hosts if host.who.startswith("worker")]
    without = [f"{host.who} on {host.name}" for host in workers if not host.gpus]
    if fleet.worker_gpus and without:
        return Finding("gpus", PROBLEM, f"torch sees none at {', '.join(without)}",
                       "install a CUDA build of torch there, or set workers: {gpus: 0}")  # fmt: skip
    kinds = Counter(gpu for host in workers for gpu in host.gpus)
    return Finding("gpus", OK, ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "none")


def _clocks(ways: LinkSpeeds) -> Finding:
    offset_s, bound_s = (max(abs(getattr(host, field)) for host in ways.hosts) for field in ("offset_s", "bound_s"))
    if not bound_s:
        return Finding("clocks", OK, "one, as far as a message can tell")
    found = f"up to {offset_s:.3g} s apart, known to {1000 * bound_s:.2g} ms"
    if bound_s > EXACT_S:
        return Finding("clocks", NOTE, found, "how long a push and its pull took, each, is known no better than that")
    return Finding("clocks", OK, found)


def _links(ways: LinkSpeeds) -> Finding:
    latencies_ms = [1000 * way.latency_s for way in ways.ways]
    slowest = min(ways.ways, key=lambda way: min(way.up_bit_s, way.down_bit_s))
    rates = [rate / 1e9 for way in ways.ways for rate in (way.up_bit_s, way.down_bit_s)]
    found = (f"latency {_span(latencies_ms)} ms one way; {_span(rates)} Gbit/s by themselves, "
             f"{ways.together_bit_s / 1e9:.2g} Gbit/s all at once")  # fmt: skip
    if min(rates) < SLOW * median(rates):
        between = f"worker {slowest.worker} and server {slowest.server}"
        return Finding("links", NOTE, found, f"the slowest way is that of {between}: look at their hosts' network")
    return Finding("links", OK, found)


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def _prediction(run: Run, costs: Mapping[str, Any], write: str | None) -> Finding:
    usual = Cluster()
    cluster = {name: _plain(value) for name, value in costs.items() if value != getattr(usual, name) and value != []}
    fields = {"engine": "virtual", "workers": run.workers, "servers": run.servers, "cluster": cluster}
    if write:
        Path(write).write_text(yaml.safe_dump(fields, sort_keys=False))
    flow = yaml.safe_dump(cluster, default_flow_style=True, sort_keys=False, width=10**6).strip()
    where = f"written to {write}: pslab run --file {write}" if write else "--write FILE makes a run of it"
    return Finding("prediction", OK, f"cluster: {flow}", f"it equals this one for the default model; {where}")


def _plain(value: Any) -> Any:
    """A value with three significant digits: no more are known."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value
