"""Runs that chaos campaigns have found a violation in, each of which was mended."""

from __future__ import annotations

from typing import Any

from tools.chaos.draw import DATA, MODEL

COMMON = {"engine": "timing", "model": MODEL, "data": DATA, "batch_size": 16, "on_death": "continue"}
FOUND: dict[str, dict[str, Any]] = {
    "joins amid a layered round": {
        "sync": "bsp", "workers": 4, "ranges": "layers:1000", "pushes": 17, "cluster": {"compute_s": 0.01,
        "leave": {2: 0.04, 3: 0.068089}, "join": {3: 0.07}, "faults": [{"what": "corrupt", "probability": 0.03}]}},
    "back before its first push": {
        "sync": "ssp:2", "workers": 5, "prune": "range:14,local_apply=off", "pull": "range", "pushes": 24, "cluster": {
        "compute_s": 0.02, "server_bandwidth_bit_s": 2.32e7, "leave": {4: 0.01}, "join": {4: 0.03}}},
    "leaves, is back, is killed": {
        "sync": "backup:3", "workers": 5, "pushes": 34, "seed": 122, "lease_s": 0.1692, "cluster": {"compute_s": 0.0141,
        "compute_sigma": 0.5, "latency_s": 0.00138603, "apply_s": 0.00084882, "leave": {1: 0.015369, 2: 0.0082767},
        "join": {1: 0.071628, 3: 0.054285}, "faults": [{"what": "kill", "worker": 3, "iteration": 0}, {"what": "delay",
        "worker": 2, "at_s": 0.110403, "for_s": 0.002679}, {"what": "kill", "worker": 1, "iteration": 6},
        {"what": "drop", "worker": 1, "iteration": 6, "direction": "up", "for_s": 0.0062886}]}},
    "a worker that is to leave, and is dead": {
        "sync": "backup:5", "workers": 6, "pushes": 14, "seed": 93, "lease_s": 0.1, "cluster": {"compute_s": 0.00564,
        "compute_sigma": 0.5, "slow": {4: 1.39}, "latency_s": 0.000268464, "bandwidth_bit_s": 136000000.0,
        "duplex": "half", "apply_s": 0.000460224, "select_s": 0.00091932, "bandwidth_at": {0.0164124: 137000000.0},
        "leave": {1: 0.0351372, 3: 0.0272976, 4: 0.0113928, 5: 0.0091368}, "join": {1: 0.0453456, 4: 0.01338936,
        5: 0.00980232}, "faults": [{"what": "drop", "at_s": 0.00498576, "direction": "up", "for_s": 0.0271848},
        {"what": "drop", "iteration": 2, "for_s": 0.00075012}, {"what": "kill", "worker": 3, "at_s": 0.0201912}]}},
    "frames as the server is free": {
        "sync": "ssp:3", "workers": 3, "ranges": "layers:1000", "pushes": 28, "cluster": {"compute_s": 0.007,
        "latency_s": 0.0002, "server_bandwidth_bit_s": 6.88e8, "apply_s": 2e-5, "message_s": 6e-5}},
    "back after a death unnoticed": {
        "sync": "ssp:0", "workers": 6, "ranges": "layers:1000", "pushes": 25, "cluster": {"compute_s": 0.02,
        "compute_sigma": 0.5, "leave": {4: 0.1}, "join": {4: 0.144622},
        "faults": [{"what": "kill", "worker": 4, "at_s": 0.03}]}},
    "a layered worker that is back before the server heard that it had left": {
        "sync": "bsp", "workers": 2, "ranges": "layers:1000", "order": "stalest", "pushes": 23, "seed": 2222,
        "lease_s": 0.17061, "cluster": {"compute_s": 0.0121, "compute_sigma": 0.5, "latency_s": 0.00057354,
        "apply_s": 0.002541, "leave": {1: 0.017787}, "join": {1: 0.0197835}, "faults": [{"what": "corrupt", "worker": 0,
        "at_s": 0.100188, "direction": "up", "for_s": 0.05445}, {"what": "corrupt", "worker": 0, "probability": 0.1,
        "direction": "down", "for_s": 0.0023353}, {"what": "stop", "iteration": 4, "for_s": 0.053724}]}},
    "a death of which a busy server does not hear before the end": {
        "sync": "dssp:3,4", "workers": 4, "ranges": "layers:1000", "order": "tic", "pushes": 10, "seed": 1939,
        "lease_s": 0.276, "cluster": {"compute_s": 0.015, "compute_sigma": 0.1, "slow": {2: 3.77},
        "latency_s": 0.004455, "apply_s": 5.655e-05, "message_s": 0.00423, "select_s": 0.000423,
        "faults": [{"what": "kill", "worker": 1, "at_s": 0.2835}, {"what": "kill", "worker": 3, "iteration": 0}]}},
    "an eager worker whose pull comes as the server is free": {
        "sync": "eager:4", "workers": 4, "pushes": 29, "seed": 1973, "lease_s": 0.1, "cluster": {"compute_s": 0.00903,
        "compute_sigma": 0.1, "slow": {2: 0.559}, "latency_s": 0.00638421, "apply_s": 0.000771162,
        "faults": [{"what": "drop", "worker": 3, "iteration": 2, "direction": "down", "for_s": 0.0506583},
        {"what": "drop", "worker": 0, "probability": 0.3, "direction": "up", "for_s": 0.112875}, {"what": "stop",
        "probability": 0.1, "for_s": 0.00886746}, {"what": "corrupt", "worker": 0, "probability": 0.3,
        "for_s": 0.0235683}]}},
}  # fmt: skip
