"""pslab doctor: this machine, or with --cluster the hosts of a fleet."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from pslab.errors import ConfigError
from pslab.lab.commands.doctor import here
from pslab.lab.commands.finding import PROBLEM, SIGNS, line


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("doctor", help="what is not well here, or on a cluster, and what to do about it")
    parser.add_argument("--cluster", metavar="FILE", help="look at the hosts of this cluster.yaml, or at: loopback")
    parser.add_argument("--write", metavar="FILE", help="and write a run in virtual time that predicts it, as YAML")
    parser.add_argument("--json", action="store_true", help="as JSON")


def main(options: argparse.Namespace) -> int:
    """Look at everything and report it; exit status 1 if there is a problem.

    Raises:
        ConfigError: the cluster is none, or is this machine's shared memory; there is a file to write and no cluster.
    """
    if options.write and not options.cluster:
        raise ConfigError("write", options.write, "is for what --cluster FILE, or --cluster loopback, predicts")
    findings = here.examine()
    if options.cluster:
        from pslab.lab.commands.doctor import hosts

        findings = hosts.examine(options.cluster, options.write)
    found = []
    for finding in findings:
        found.append(finding)
        if not options.json:
            print(line(finding), flush=True)
    counts = {state: sum(finding.state == state for finding in found) for state in SIGNS}
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    else:
        print(", ".join(f"{count} {SIGNS[state]}" for state, count in counts.items() if count))
    return 1 if counts[PROBLEM] else 0
