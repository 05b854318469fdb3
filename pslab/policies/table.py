"""Every policy's name. Adding one is a page and a line here."""

from __future__ import annotations

from pslab.policies.orders import FIFO, FILO, TAC, TIC, Advancing, Front, Needed, Stalest
from pslab.policies.partition import Layers, Whole
from pslab.policies.rates import AdaGrad, Constant, DynSGD, Modulated, Split
from pslab.policies.schedules import Linear, Steady, Steps
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.backup import Backup
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.dssp import DSSP
from pslab.policies.sync.eager import Eager
from pslab.policies.sync.elastic import ElasticBSP
from pslab.policies.sync.local_sgd import LocalSGD
from pslab.policies.sync.ssp import SSP

SYNCS: dict[str, type] = {
    "bsp": BSP, "ssp": SSP, "asp": ASP, "dssp": DSSP, "elastic": ElasticBSP, "eager": Eager, "local": LocalSGD,
    "backup": Backup,
}  # fmt: skip
RATES: dict[str, type] = {
    "constant": Constant, "dynsgd": DynSGD, "adagrad": AdaGrad, "split": Split, "modulated": Modulated,
}  # fmt: skip
ORDERS: dict[str, type] = {
    "fifo": FIFO, "filo": FILO, "stalest": Stalest, "advancing": Advancing, "needed": Needed, "front": Front,
    "tic": TIC, "tac": TAC,
}  # fmt: skip
RANGES: dict[str, type] = {"whole": Whole, "layers": Layers}
SCHEDULES: dict[str, type] = {"constant": Steady, "linear": Linear, "steps": Steps}
