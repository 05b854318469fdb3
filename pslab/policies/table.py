"""Every policy's name. Adding one is a page and a line here."""

from __future__ import annotations

from pslab.policies.dssp import DSSP
from pslab.policies.elastic import ElasticBSP
from pslab.policies.orders import FIFO
from pslab.policies.rates import Constant
from pslab.policies.schedules import Linear, Steady, Steps
from pslab.policies.sync import ASP, BSP, SSP

SYNCS: dict[str, type] = {"bsp": BSP, "ssp": SSP, "asp": ASP, "dssp": DSSP, "elastic": ElasticBSP}
RATES: dict[str, type] = {"constant": Constant}
ORDERS: dict[str, type] = {"fifo": FIFO}
SCHEDULES: dict[str, type] = {"constant": Steady, "linear": Linear, "steps": Steps}
