"""The place of a run's processes: this machine, or the hosts of a Ray cluster; and the file that describes it.

    # cluster.yaml
    engine: ray                    # or loopback: this machine alone, without shared memory
    address: auto                  # of the Ray cluster: host:port, auto (RAY_ADDRESS, or the one on this host), local
    workers: {count: 8, gpus: 0.5, cpus: 1, per_node: 4}
    servers: {count: 2, cpus: 1, apart: true}
    data: {network: 10.0.0.0/8, ports: 20000-20100, payload: authenticated}
    on_death: restart
    lease_s: 5
    checkpoint_every: 200
    links: free                    # or an emulated cluster, on top of the real one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pslab.config import plain_yaml
from pslab.config.parameters import Bounds, OneOf, check, check_names, parameters
from pslab.errors import ConfigError, nearest

PLACES = ("local", "loopback", "ray")
COUNT = Bounds(at_least=0, at_most=1024)
PORTS = (1024, 65535)  # that anybody may listen on
NO_ENTRY = "there is no such entry"


@dataclass(frozen=True)
class Fleet:
    """Where the processes of a run are started, and which resources they have.

    Raises:
        ConfigError: a value that no fleet can have.
    """

    place: Annotated[str, OneOf(*PLACES), "shared memory, TCP on this machine, or the hosts of a Ray cluster"] = "local"
    address: Annotated[str, "of a Ray cluster: host:port, auto for the one on this host, local for a new one"] = "auto"
    worker_cpus: Annotated[float, COUNT, "cores that Ray keeps for each worker"] = 1.0
    worker_gpus: Annotated[float, COUNT, "GPUs, or the share of one, for each worker"] = 0.0
    workers_per_node: Annotated[int | None, Bounds(at_least=1, at_most=1024), "at most; None: any number"] = None
    server_cpus: Annotated[float, COUNT, "cores that Ray keeps for each server"] = 1.0
    servers_apart: Annotated[bool, "whether each server gets a host of its own, as far as there are enough"] = False
    network: Annotated[str, "whose addresses processes listen on, and no others: 10.0.0.0/8"] = "127.0.0.1"
    payload: Annotated[str, OneOf("plain", "authenticated", "encrypted"), "the numbers that messages bring"] = "plain"
    ports: Annotated[str, "they listen on, as 20000-20100; any: whichever is free"] = "any"

    def __post_init__(self) -> None:
        check(self, "fleet.")
        self.port_range  # noqa: B018  it raises

    @property
    def port_range(self) -> tuple[int, int]:
        """The first and the last port; (0, 0) for any."""
        if self.ports == "any":
            return 0, 0
        first, dash, last = self.ports.partition("-")
        if not (dash and first.isdigit() and last.isdigit() and PORTS[0] <= int(first) <= int(last) <= PORTS[1]):
            problem = f"must be any, or the first and the last of {PORTS[0]} to {PORTS[1]}, as 20000-20100"
            raise ConfigError("fleet.ports", self.ports, problem)
        return int(first), int(last)

    @classmethod
    def of(cls, given: Any) -> Fleet:
        """A fleet by its place alone, or by a mapping of its fields."""
        if isinstance(given, str):
            if given not in PLACES:
                raise ConfigError("fleet", given, nearest(given, PLACES))
            return cls(given)
        if not isinstance(given, Mapping):
            raise ConfigError("fleet", given, "must be a place, or a mapping of Fleet's fields")
        check_names(given, parameters(Fleet), "fleet.", NO_ENTRY)
        return cls(**given)


#: Where each entry of a cluster's file goes: to a field of Run, or, after "fleet.", to one of Fleet.
ENTRIES: dict[str, Any] = {
    "engine": "fleet.place", "address": "fleet.address",
    "workers": {"count": "workers", "cpus": "fleet.worker_cpus", "gpus": "fleet.worker_gpus",
                "per_node": "fleet.workers_per_node"},
    "servers": {"count": "servers", "cpus": "fleet.server_cpus", "apart": "fleet.servers_apart"},
    "data": {"network": "fleet.network", "ports": "fleet.ports", "payload": "fleet.payload"},
    "on_death": "on_death", "lease_s": "lease_s", "checkpoint_every": "checkpoint_every", "links": "cluster",
}  # fmt: skip

#: The same for what `pslab doctor --cluster FILE --write FILE` leaves: a modelled cluster that equals the hosts.
PREDICTED = {name: name for name in ("engine", "workers", "servers", "cluster")}


def is_file(cluster: Any) -> bool:
    """Whether a run's `cluster` names a file of hosts or has the content of one, and is no emulated cluster."""
    if isinstance(cluster, str):
        return cluster.endswith((".yaml", ".yml"))
    return isinstance(cluster, Path) or (isinstance(cluster, Mapping) and "engine" in cluster)


def fields_of(cluster: Any) -> dict[str, Any]:
    """The fields of Run that a cluster's file, or a mapping like it, sets.

    Raises:
        ConfigError: it cannot be read, or has an entry that there is not, or a value that cannot be.
    """
    given = cluster
    if not isinstance(cluster, Mapping):
        try:
            given = plain_yaml.read(Path(cluster).expanduser())
        except plain_yaml.Unreadable as error:
            raise ConfigError("cluster", str(cluster), f"cannot be read: {error}") from None
        if not isinstance(given, Mapping):
            raise ConfigError("cluster", str(cluster), f"must have some of the entries {', '.join(ENTRIES)}")
    if "cluster" in given:
        return _taken(given, PREDICTED, "cluster.")
    found = _taken(given, ENTRIES, "cluster.")
    fleet = {name.removeprefix("fleet."): value for name, value in found.items() if name.startswith("fleet.")}
    fields = {name: value for name, value in found.items() if not name.startswith("fleet.")}
    return {"cluster": "free", **fields, "fleet": fleet if fleet.keys() - {"place"} else fleet.get("place", "ray")}


def _taken(given: Mapping[str, Any], entries: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    check_names(given, entries, prefix, NO_ENTRY)
    found: dict[str, Any] = {}
    for name, value in given.items():
        goes = entries[name]
        if isinstance(goes, str):
            found[goes] = value
        elif isinstance(value, Mapping):
            found |= _taken(value, goes, f"{prefix}{name}.")
        else:
            raise ConfigError(f"{prefix}{name}", value, f"must say {', '.join(goes)}, as {{{next(iter(goes))}: ...}}")
    return found
