"""TEMPORARY stand-in by the lead so that the engine can be tried: overwrite it."""
import math
from dataclasses import dataclass
import torch
from pslab.errors import PslabError
class NonFinite(PslabError): pass
def is_finite(t): return bool(torch.isfinite(t).all())
@dataclass(frozen=True)
class Whole:
    residual: bool = False
    def select(self, v): return torch.arange(len(v))
@dataclass(frozen=True)
class Static:
    fraction: float
    residual: bool = True
    def __post_init__(self):
        if not 0 < self.fraction <= 1: raise ValueError("fraction must be above 0 and at most 1")
    def select(self, v): return torch.topk(v.abs(), max(1, math.ceil(self.fraction * len(v)))).indices.sort().values
@dataclass(frozen=True)
class Deviation:
    sigmas: float
    residual: bool = True
    def __post_init__(self):
        if self.sigmas <= 0: raise ValueError("sigmas must be above 0")
    def select(self, v): return (v.abs() > self.sigmas * v.std(correction=0)).nonzero().flatten()
PRUNERS = {"none": Whole, "static": Static, "std": Deviation, "dynamic": Deviation}
class Pruner:
    def __init__(self, rule, layers, size, dtype, device):
        self.rule, self.layers, self.residual = rule, layers, torch.zeros(size, dtype=dtype, device=device)
    def prune(self, gradient):
        if not is_finite(gradient): raise NonFinite("x")
        if self.rule.residual: self.residual += gradient
        v = self.residual if self.rule.residual else gradient
        idx = torch.cat([self.rule.select(v[s]) + s.start for s in self.layers])
        values = v[idx].clone()
        if self.rule.residual: v[idx] = 0
        return idx, values
