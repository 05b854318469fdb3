"""What a figure must not hide about a result: marks behind its label, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pslab.lab.records.card import MARKS
from pslab.lab.records.units import SPACE


class Recorded(Protocol):
    """What has a manifest, such as a result."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...


#: What changes the last bits of a run, so that records made with several of them are not quite comparable.
MADE_BY = {"capability": "instruction sets of the CPU", "torch": "versions of torch"}


def marks(results: Iterable[Recorded]) -> str:
    """The marks behind the label of these results: ``"*"``, and ``"✖2/3"`` where two of three seeds diverged."""
    manifests = [result.manifest for result in results]
    diverged = sum(manifest.get("outcome") == "diverged" for manifest in manifests)
    found = "".join(mark for mark, _, test in MARKS if any(map(test, manifests)))
    return found + (f"{SPACE}✖{diverged}/{len(manifests)}" if diverged else "")


def notes_of(results: Iterable[Recorded]) -> list[str]:
    """The meaning of the marks that these results have."""
    manifests = [result.manifest for result in results]
    found = [f"{mark} {words}" for mark, words, test in MARKS if any(map(test, manifests))]
    for name, words in MADE_BY.items():
        kinds = {str(manifest.get("environment", {}).get(name)) for manifest in manifests} - {"None"}
        found += [f"made with several {words}: {', '.join(sorted(kinds))}"] if len(kinds) > 1 else []
    slower = sorted({float(manifest.get("dilation", 1.0)) for manifest in manifests})
    if slower and slower[-1] > 1:
        factor = "–".join(f"{k:g}" for k in dict.fromkeys((slower[0], slower[-1])))
        found.append(f"emulated {factor} times slower than shown: seconds are the cluster's own")
    diverged = any(manifest.get("outcome") == "diverged" for manifest in manifests)
    return found + (["✖ diverged: the run ended there, and is not in the band"] if diverged else [])
