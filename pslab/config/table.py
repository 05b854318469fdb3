"""Every name that a field of Run accepts, one row each, and the objects and other strings that it accepts instead.

To add a policy, pruning rule, model, dataset or engine, write its page (a module with a docstring) and add its row
here: the command line, `pslab list`, the documentation and the figures read this table. A row's module is imported when
the row is loaded, so the table itself needs neither torch nor the policies.

    ROWS["sync"]["ssp"].load()          the class SSP
    find("sync", "ssp:3")               the row of "ssp"; also find("sync", SSP(3)); None for a user's own class
    build("sync", "ssp:3")              in `pslab.config.spec`: SSP(3)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, eq=False)
class Row:
    """A name that a field of Run accepts. `path` is "module:attribute", or "module" if the row names a module.

    Figures read the last six fields. A label is a template: "DSSP, s = {low}, up to {extra} more". Its first
    placeholders are the first fields of the class, in their order; a part between commas is left out if its parameter
    is not given; "{fraction:%}" is written in per cent; parameters that the template does not mention are appended.
    """

    kind: str
    name: str
    path: str
    what: str = ""  #: one line, if the docstring at `path` is not used
    source: str = ""  #: "Author (venue year)"
    example: str = ""  #: the name with parameters; the name alone if ""
    small: str = ""  #: the policy that the checker explores; `example` if ""
    label: str = ""  #: template of the label in figures; the name if ""
    colour: str = ""  #: colour reserved for this name in every figure
    marker: str = ""  #: marker reserved for this name if markers distinguish this kind
    ramp: Mapping[float, str] = field(default_factory=dict)  #: colours by the first parameter, mildest first
    averages: bool = False  #: synchronization policies: whether a step is the mean of several pushes
    unit: str = ""  #: the unit of a loss; for data, the name of one target

    def load(self) -> Any:
        """Return the class, factory or module that the path names."""
        module, _, attribute = self.path.partition(":")
        loaded = import_module(module)
        return getattr(loaded, attribute) if attribute else loaded

    @property
    def summary(self) -> str:
        """Return `what` or else the first line of the docstring at `path`, without a full stop."""
        return self.what or (inspect.getdoc(self.load()) or "").partition("\n")[0].rstrip(".")


@dataclass(frozen=True)
class Alternatives:
    """The allowed values of a field of Run that are not names in the table."""

    methods: tuple[str, ...] = ()  #: methods and attributes that an object needs to be used instead of a name
    forms: tuple[str, ...] = ()  #: forms of other strings
    objects: str = ""  #: words for other values
    guide: str = ""  #: the page about the user's own objects, in docs/


KINDS: dict[str, Alternatives] = {
    "sync": Alternatives(methods=("window", "initial", "step"), guide="how-to/policy.md"),
    "prune": Alternatives(methods=("select", "residual"), guide="how-to/pruner.md"),
    "quantize": Alternatives(methods=("compress", "decompress"), guide="how-to/compress.md"),
    "rate": Alternatives(methods=("scale",), guide="how-to/rate.md"),
    "ranges": Alternatives(methods=("cut", "layered")),
    "order": Alternatives(methods=("pick",), guide="how-to/order.md"),
    "schedule": Alternatives(methods=("factor", "needs_budget")),
    "model": Alternatives(forms=("package.module:factory", "torchvision:NAME"), objects="a callable, an nn.Module",
                  guide="how-to/model-and-data.md"),
    "data": Alternatives(forms=("package.module:function", "torchvision:NAME"), objects="a callable, a Dataset",
                 guide="how-to/model-and-data.md"),
    "loss": Alternatives(forms=("package.module:name",), objects=(
        "a callable loss(output, target) that returns a scalar with a gradient")),
    "metric": Alternatives(forms=("package.module:name", "package.module:name:lower"), objects=(
        "a callable metric(output, target) that returns a value for each example, or their mean; higher is better "
        "unless its attribute lower_is_better is True, or its name ends with :lower")),
    "partition": Alternatives(),
    "placement": Alternatives(),
    "engine": Alternatives(),
}  # fmt: skip


def _table(*rows: Row) -> dict[str, dict[str, Row]]:
    return {kind: {row.name: row for row in rows if row.kind == kind} for kind in KINDS}


#: Rows by kind and name. Do not change the order within a kind: figures assign dashes by it.
ROWS = _table(
    Row("sync", "bsp", "pslab.policies.sync.bsp:BSP", source="Valiant (CACM 1990)",
        label="BSP", colour="#004488", marker="circle", averages=True),
    Row("sync", "ssp", "pslab.policies.sync.ssp:SSP", source="Ho et al. (NIPS 2013)", example="ssp:3", small="ssp:1",
        label="SSP, s = {staleness}", colour="#DDAA33", marker="diamond"),
    Row("sync", "asp", "pslab.policies.sync.asp:ASP", source="Dean et al. (NIPS 2012)",
        label="ASP", colour="#BB5566", marker="square"),
    Row("sync", "dssp", "pslab.policies.sync.dssp:DSSP", source="Zhao et al. (ICDCS 2019)", example="dssp:3,12",
        small="dssp:1,1", label="DSSP, s = {low}, up to {extra} more", colour="#00A08A", marker="triangle-up"),
    Row("sync", "elastic", "pslab.policies.sync.elastic:ElasticBSP", source="Zhao et al. (ICDM 2019)",
        example="elastic:15", small="elastic:2",
        label="ElasticBSP, R = {iterations}", colour="#7FC4F0", marker="triangle-down"),
    Row("sync", "eager", "pslab.policies.sync.eager:Eager", source="Jin et al. (TPDS 2022)",
        label="eager pull, s = {staleness}", colour="#661133", marker="cross"),
    Row("sync", "local", "pslab.policies.methods.local_sgd:LocalSGD", source="Stich (ICLR 2019)", example="local:8",
        label="local SGD, {period} steps", colour="#7A6A00", marker="star", averages=True),
    Row("sync", "diloco", "pslab.policies.methods.diloco:DiLoCo", source="Douillard et al. (arXiv 2023)",
        example="diloco:20", small="diloco:2", label="DiLoCo, {period} steps", colour="#FF4B4B", marker="star-diamond",
        averages=True),
    Row("sync", "streaming", "pslab.policies.methods.streaming:Streaming", source="Douillard et al. (arXiv 2025)",
        example="streaming:20,2,overlap=5", small="streaming:2,2",
        label="Streaming DiLoCo, {period} steps, {fragments} fragments", colour="#769C55", marker="bowtie",
        averages=True),
    Row("sync", "decoupled", "pslab.policies.methods.decoupled:Decoupled", source="Douillard et al. (arXiv 2026)",
        example="decoupled:20,2,quorum=2", small="decoupled:2,2,quorum=2",
        label="Decoupled DiLoCo, {period} steps, {fragments} fragments", colour="#F078C3", marker="hexagram",
        averages=True),
    Row("sync", "adiloco", "pslab.policies.methods.adiloco:AsyncDiLoCo", source="Liu et al. (arXiv 2024)",
        example="adiloco:20", small="adiloco:2", label="asynchronous local SGD, {period} steps", colour="#8F4B82",
        marker="star-square"),
    Row("sync", "easgd", "pslab.policies.methods.easgd:EASGD", source="Zhang et al. (NIPS 2015)", example="easgd:10",
        small="easgd:2", label="EASGD, {period} steps, β = {beta}", colour="#334400", marker="star-triangle-up",
        averages=True),
    Row("sync", "average", "pslab.policies.methods.average:Average",
        source="Zinkevich et al. (NIPS 2010); Hegde and Usmani (Stanford report 2016)", example="average:1",
        small="average:0.1", label="parallel SGD, passes: {passes}", colour="#AACC88", marker="pentagon",
        averages=True),
    Row("sync", "downpour", "pslab.policies.methods.downpour:Downpour", source="Dean et al. (NIPS 2012)",
        example="downpour:5,5", small="downpour:2,1", label="Downpour, fetch {n_fetch}, push {n_push}",
        colour="#AA00EE", marker="hourglass"),
    Row("sync", "admm", "pslab.policies.methods.admm:ADMM", source="Boyd et al. (FnT in Machine Learning 2011)",
        example="admm:10", small="admm:2", label="ADMM, {steps} steps", colour="#6600AA", marker="x", averages=True),
    Row("sync", "backup", "pslab.policies.sync.backup:Backup", source="Chen et al. (ICLR workshop 2016)",
        example="backup:1", label="backup workers, {spare} spare", colour="#8877CC", marker="hexagon", averages=True),

    Row("prune", "none", "pslab.tensors.compression.uncompressed:Everything", label="dense", colour="#000000",
        marker="circle"),
    Row("prune", "static", "pslab.tensors.compression.sparse:Static",
        source="Tsai (thesis report 2018); Aji and Heafield (EMNLP 2017)", example="static:1%",
        label="static {fraction:%}", ramp={0.1: "#F39A5B", 0.01: "#BF2F6B", 0.001: "#4A1466"}),
    Row("prune", "std", "pslab.tensors.compression.sparse:Deviation", source="Tsai (thesis report 2018)",
        example="std:2", label="std {sigmas} σ", ramp={1: "#86CF7E", 2: "#17788F", 3: "#1E3A85"}),
    Row("prune", "dynamic", "pslab.tensors.compression.sparse:Dynamic", source="Tsai (thesis report 2018)",
        example="dynamic:5", label="dynamic, {passes} passes", ramp={3: "#D9B44A", 5: "#A0662A", 8: "#5A2418"}),
    Row("prune", "dgc", "pslab.tensors.compression.sparse:DGC", source="Lin et al. (ICLR 2018)", example="dgc:0.1%",
        label="DGC {fraction:%}", ramp={0.1: "#BFA8F0", 0.01: "#7A55D8", 0.001: "#31197A"}),
    Row("prune", "range", "pslab.tensors.compression.sparse:Ranges",
        source="Tsai (slides 2017); Li et al. (OSDI 2014)", example="range:300", label="ranges, {size} keys"),
    Row("prune", "threshold", "pslab.tensors.compression.sparse:Threshold", source="Sahu et al. (NeurIPS 2021)",
        example="threshold:0.01", label="threshold {theta}"),
    Row("prune", "randomk", "pslab.tensors.compression.sparse:RandomK", source="Stich et al. (NeurIPS 2018)",
        example="randomk:1%", label="random {fraction:%}"),
    Row("prune", "adaq", "pslab.tensors.compression.sparse:BothSigns", source="Dryden et al. (MLHPC 2016)",
        example="adaq:1%", label="both signs {fraction:%}"),
    Row("prune", "lowrank", "pslab.tensors.compression.matrices:LowRank", source="Vogels et al. (NeurIPS 2019)",
        example="lowrank:2", label="factors of rank {rank}"),
    Row("prune", "powersgd", "pslab.tensors.compression.matrices:PowerSGD", source="Vogels et al. (NeurIPS 2019)",
        example="powersgd:2", label="PowerSGD, rank {rank}"),
    Row("prune", "demo", "pslab.tensors.compression.matrices:DeMo", source="Peng et al. (arXiv 2024)",
        label="DeMo, {topk} of a chunk"),
    Row("prune", "sketch", "pslab.tensors.compression.matrices:CountSketch", source="Rothchild et al. (ICML 2020)",
        example="sketch:cols=1000", label="count sketch, {cols} buckets"),
    Row("prune", "ef21", "pslab.tensors.compression.sparse:EF21", source="Richtárik et al. (NeurIPS 2021)",
        example="ef21:1%", label="EF21 {fraction:%}"),

    Row("quantize", "none", "pslab.tensors.compression.uncompressed:Plain", label="not quantized"),
    Row("quantize", "fp16", "pslab.tensors.compression.codes:Half", source="Micikevicius et al. (ICLR 2018)",
        label="float16"),
    Row("quantize", "bf16", "pslab.tensors.compression.codes:Brain", source="Kalamkar et al. (arXiv 2019)",
        label="bfloat16"),
    Row("quantize", "int8", "pslab.tensors.compression.codes:Int8", source="Dettmers (ICLR 2016)", label="int8"),
    Row("quantize", "uint8", "pslab.tensors.compression.codes:UInt8", source="Li et al. (VLDB 2020)", label="uint8"),
    Row("quantize", "e3m0", "pslab.tensors.compression.codes:PowersOfTwo", source="Douillard et al. (arXiv 2025)",
        label="E3M0"),
    Row("quantize", "fp8", "pslab.tensors.compression.codes:Float8", source="Micikevicius et al. (arXiv 2022)",
        label="float8"),
    Row("quantize", "qsgd", "pslab.tensors.compression.codes:QSGD", source="Alistarh et al. (NIPS 2017)",
        example="qsgd:4", label="QSGD, {bits} bits"),
    Row("quantize", "terngrad", "pslab.tensors.compression.signs:TernGrad", source="Wen et al. (NIPS 2017)",
        label="TernGrad"),
    Row("quantize", "onebit", "pslab.tensors.compression.signs:OneBit", source="Seide et al. (Interspeech 2014)",
        label="1-bit SGD"),
    Row("quantize", "sign", "pslab.tensors.compression.signs:Sign", source="Bernstein et al. (ICML 2018)",
        label="signSGD"),
    Row("quantize", "efsign", "pslab.tensors.compression.signs:ScaledSign", source="Karimireddy et al. (ICML 2019)",
        label="scaled sign"),
    Row("quantize", "signum", "pslab.tensors.compression.signs:Signum", source="Bernstein et al. (ICML 2018)",
        label="Signum, β = {beta}"),
    Row("quantize", "natural", "pslab.tensors.compression.codes:Natural", source="Horváth et al. (MSML 2022)",
        label="natural compression"),
    Row("quantize", "uniform8", "pslab.tensors.compression.codes:Uniform8", source="Ryabinin et al. (ICML 2023)",
        label="256 equal bins"),
    Row("quantize", "quantile", "pslab.tensors.compression.codes:Quantile", source="Jiang et al. (SIGMOD 2018)",
        example="quantile:16", label="{runs} quantiles"),
    Row("quantize", "dynamic8", "pslab.tensors.compression.codes:Dynamic8", source="Dettmers et al. (ICLR 2022)",
        label="dynamic 8 bits"),
    Row("quantize", "inceptionn", "pslab.tensors.compression.codes:Inceptionn", source="Li et al. (MICRO 2018)",
        label="INCEPTIONN, e = {e}"),

    Row("rate", "constant", "pslab.policies.rates:Constant", source="Jiang et al. (SIGMOD 2017)",
        label="constant rate", colour="#000000", marker="circle"),
    Row("rate", "dynsgd", "pslab.policies.rates:DynSGD",
        source="Jiang et al. (SIGMOD 2017); Hermans (thesis 2017); Tsai (slides 2017)",
        label="DynSGD, {variant}", colour="#332288", marker="triangle-up"),
    Row("rate", "adagrad", "pslab.policies.rates:AdaGrad", source="Duchi et al. (JMLR 2011); Tsai (slides 2017)",
        example="adagrad:server", label="AdaGrad, {accumulator}", colour="#D55E00", marker="star"),
    Row("rate", "split", "pslab.policies.rates:Split", source="Tsai (slides 2017)", label="split, {alpha}",
        colour="#A3C644", marker="diamond"),
    Row("rate", "modulated", "pslab.policies.rates:Modulated",
        source="Jin et al. (TPDS 2022); Zhang et al. (arXiv 2015)",
        label="modulated, {form}", colour="#117733", marker="square"),

    Row("ranges", "whole", "pslab.policies.partition:Whole"),
    Row("ranges", "layers", "pslab.policies.partition:Layers", example="layers:40000", source=(
        "Zhang et al. (ATC 2017); in slices Jayarajan et al. (MLSys 2019), Peng et al. (SOSP 2019)")),
    Row("ranges", "buckets", "pslab.policies.partition:Buckets", example="buckets:6553600", small="buckets:20,first=8",
        source="Li et al. (PVLDB 2020)"),

    Row("order", "fifo", "pslab.policies.orders:FIFO", source="Tsai (thesis report 2018)", label="FIFO",
        colour="#888888"),
    Row("order", "filo", "pslab.policies.orders:FILO", source="Tsai (thesis report 2018)", label="FILO",
        colour="#BB5566"),
    Row("order", "stalest", "pslab.policies.orders:Stalest", source="Tsai (thesis report 2018)", label="stalest pull",
        colour="#7FC4F0"),
    Row("order", "advancing", "pslab.policies.orders:Advancing", source="Tsai (thesis report 2018)",
        label="advancing push", colour="#DDAA33"),
    Row("order", "needed", "pslab.policies.orders:Needed", source="Tsai (thesis report 2018)", label="needed",
        colour="#004488"),
    Row("order", "front", "pslab.policies.orders:Front",
        source="Jayarajan et al. (MLSys 2019), Peng et al. (SOSP 2019)", label="front first, credit {credit}",
        colour="#00A08A"),
    Row("order", "tic", "pslab.policies.orders:TIC", source="Hashemi et al. (MLSys 2019)", label="TIC",
        colour="#8877CC"),
    Row("order", "tac", "pslab.policies.orders:TAC", source="Hashemi et al. (MLSys 2019)", label="TAC",
        colour="#661133"),

    Row("schedule", "constant", "pslab.policies.schedules:Steady", label="constant schedule"),
    Row("schedule", "linear", "pslab.policies.schedules:Linear", label="linear schedule"),
    Row("schedule", "steps", "pslab.policies.schedules:Steps", example="steps:0.1,at=0.5/0.75",
        label="schedule in steps, ×{factor_each}, at {at}"),
    Row("schedule", "cosine", "pslab.policies.schedules:Cosine", source="Loshchilov and Hutter (ICLR 2017)",
        example="cosine:warm=20", label="cosine schedule, warm-up of {warm} steps, to {end:%}"),
    Row("schedule", "warmup", "pslab.policies.schedules:WarmUp", example="warmup:4,then=linear",
        label="warm-up of {epochs} epochs, then {then}"),

    Row("model", "mlp", "pslab.tensors.workload.models:Width", source="Tsai (thesis report 2018)", example="mlp:64",
        label="MLP, width {hidden}"),
    Row("model", "cnn", "pslab.tensors.workload.models:CNN", label="CNN"),
    Row("model", "linear", "pslab.tensors.workload.models:Regression", label="logistic regression, {keys} keys"),
    Row("model", "gpt", "pslab.tensors.workload.gpt:Transformer", source="Radford et al. (OpenAI report 2019)",
        example="gpt:64,layers=2", label="GPT, width {width}, {layers} layers"),
    Row("model", "sizes", "pslab.tensors.workload.sizes:ModelSizes", example="sizes:resnet50",
        label="{of}, sizes only"),

    Row("data", "mnist", "pslab.tensors.datasets.mnist:Mnist", source="LeCun et al. (Proc. IEEE 1998)",
        example="mnist:train=4096,test=1000", label="MNIST, {train} to train, {test} to test"),
    Row("data", "folder", "pslab.tensors.datasets.image_folder:ImageFolder", example="folder:pictures,side=32",
        label="images of {path}, side {side}"),
    Row("data", "text", "pslab.tensors.datasets.text:Text", example="text:2000,200",
        label="language reference of Python, {train} windows to train, {test} to test", unit="byte"),
    Row("data", "functions", "pslab.tensors.datasets.functions:Functions", label="functions of Python"),
    Row("data", "libsvm", "pslab.tensors.datasets.libsvm:Libsvm", source="Chang and Lin (ACM TIST 2011)",
        example="libsvm:rows.txt", label="rows of {path}"),
    Row("data", "planted", "pslab.tensors.datasets.planted:Planted", example="planted:noise=0.2",
        label="planted rows, {rows} of {keys} keys, {per_row} in a row, {communities} communities, noise {noise:%}"),

    Row("loss", "cross_entropy", "pslab.tensors.workload.objective:cross_entropy", label="cross-entropy", unit="nats"),
    Row("loss", "mse", "pslab.tensors.workload.objective:mse", label="squared error"),
    Row("loss", "l1", "pslab.tensors.workload.objective:l1", label="absolute error"),

    Row("metric", "accuracy", "pslab.tensors.workload.objective:accuracy", label="accuracy"),
    Row("metric", "loss", "pslab.tensors.workload.objective", "the mean loss; lower is better", label="test loss"),

    Row("partition", "shuffled", "pslab.tensors.workload.data:Batches", "all examples, drawn anew in each epoch"),
    Row("partition", "random", "pslab.tensors.partitioning.partition:at_random"),
    Row("partition", "two-step", "pslab.tensors.partitioning.partition:two_step", source="Duan, Wang and Wu"),
    Row("partition", "parsa", "pslab.tensors.partitioning.partition:parsa", source="Li et al. (KDD workshop 2015)"),
    Row("partition", "multilevel", "pslab.tensors.partitioning.partition:multilevel"),

    Row("placement", "even", "pslab.policies.partition:evenly", "keys in their order, equally many at each server"),
    Row("placement", "parsa", "pslab.tensors.partitioning.placement:parsa",
        source="Li et al. (KDD workshop 2015)"),

    Row("engine", "local", "pslab.engines.local.engine", "real processes on this machine"),
    Row("engine", "ray", "pslab.engines.ray.engine", "real processes on the hosts of a Ray cluster"),
    Row("engine", "virtual", "pslab.engines.virtual.engine", "virtual time with real gradients, deterministic"),
    Row("engine", "timing", "pslab.engines.virtual.timing", "virtual time without tensors: only when things happen"),
)  # fmt: skip


def find(kind: str, value: object) -> Row | None:
    """Return the row of a string such as "ssp:3" or of an object whose class is in the table; None without one."""
    if isinstance(value, str):
        return ROWS[kind].get(value.partition(":")[0].strip().lower())
    path = f"{type(value).__module__}:{type(value).__qualname__}"
    return next((row for row in ROWS[kind].values() if row.path == path), None)


def names(kind: str) -> tuple[str, ...]:
    """Return the strings that a field of this kind accepts, for an error message: names and other forms."""
    return (*ROWS[kind], *KINDS[kind].forms)
