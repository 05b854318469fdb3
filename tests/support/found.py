"""Runs that chaos campaigns have found a violation in, each of which was mended."""

from __future__ import annotations

from typing import Any

from tools.chaos.draw import DATA, MODEL

COMMON = {"engine": "timing", "model": MODEL, "data": DATA, "batch_size": 16, "on_death": "continue"}
FOUND: dict[str, dict[str, Any]] = {
    "joins amid a layered round": {
        "sync": "bsp", "workers": 4, "ranges": "layers:1000", "pushes": 17, "seed": 104, "lease_s": 0.1,
        "cluster": {"compute_s": 0.0137, "compute_sigma": 0.0, "slow": {0: 1.24}, "stall_probability": 0.1,
        "stall_factor": 3.02, "latency_s": 0.00030962, "bandwidth_bit_s": 892000000.0, "duplex": "half",
        "overhead_s": 0.000108504, "apply_s": 4.521e-05, "serve_s": 0.00015618, "message_s": 0.00022605,
        "leave": {2: 0.04247, 3: 0.068089}, "join": {2: 0.081515, 3: 0.0694864}, "faults": [{"what": "stop",
        "worker": 2, "iteration": 4, "for_s": 0.00121519}, {"what": "corrupt", "probability": 0.03, "for_s": 0.039456},
        {"what": "corrupt", "iteration": 8, "for_s": 0.110011}]}},
    "back before its first push": {
        "sync": "ssp:2", "workers": 5, "prune": "range:14,local_apply=off", "pull": "range", "pushes": 24, "seed": 370,
        "lease_s": 0.2907, "cluster": {"compute_s": 0.017, "compute_sigma": 0.1, "slow": {1: 0.863},
        "latency_s": 0.000918, "server_bandwidth_bit_s": 23200000.0, "message_s": 0.0004828, "leave": {1: 0.012121,
        3: 0.12325, 4: 0.011339}, "join": {1: 0.027625, 3: 0.12784, 4: 0.030889}, "faults": []}},
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
        "sync": "ssp:3", "workers": 3, "ranges": "layers:1000", "order": "tic", "pushes": 28, "seed": 39,
        "lease_s": 0.150501, "cluster": {"compute_s": 0.00663, "compute_sigma": 0.0, "slow": {1: 0.699},
        "stall_probability": 0.1, "stall_factor": 1.67, "latency_s": 0.000236028, "server_bandwidth_bit_s": 688000000.0,
        "apply_s": 1.60446e-05, "message_s": 6.13275e-05, "faults": []}},
    "back after a death unnoticed": {
        "sync": "ssp:0", "workers": 6, "ranges": "layers:1000", "order": "stalest", "pushes": 25, "seed": 773,
        "lease_s": 0.17702, "cluster": {"compute_s": 0.0167, "compute_sigma": 0.5, "bandwidth_bit_s": 98100000.0,
        "duplex": "full", "apply_s": 4.5591e-05, "join": {3: 0.009686, 4: 0.144622}, "leave": {4: 0.104375},
        "faults": [{"what": "kill", "worker": 4, "at_s": 0.028891}, {"what": "stop", "iteration": 3,
        "for_s": 0.057448}]}},
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
