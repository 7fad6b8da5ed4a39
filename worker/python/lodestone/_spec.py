"""What a table is: optimizers, initial values, and when it is broadcast (proto/table.proto has every detail)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, Mapping, Optional, Union

Spec = Dict[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """How a server applies gradients. `lr` is the learning rate.

    Use one of its subclasses. `weight_decay` is the L2 strength (decoupled for AdamW and Lion); `clip_value`,
    `clip_row_norm` and `clip_block_norm` bound the gradient; `schedule` changes the rate over the steps, in the form of
    proto/table.proto: {"warmup_steps": 100, "cosine": {"steps": 10000}}.
    """

    lr: float = 0.01
    weight_decay: float = field(default=0.0, metadata={"common": True})
    clip_value: float = field(default=0.0, metadata={"common": True})
    clip_row_norm: float = field(default=0.0, metadata={"common": True})
    clip_block_norm: float = field(default=0.0, metadata={"common": True})
    schedule: Optional[Mapping[str, Any]] = field(default=None, metadata={"common": True})

    def _kind(self) -> str:
        return type(self).__name__.lower()

    def spec(self) -> Spec:
        """As Optimizer of proto/table.proto."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "lr" and not f.metadata.get("common")}
        spec: Spec = {self._kind(): own, "learning_rate": self.lr}
        if self.weight_decay:
            spec["weight_decay"] = self.weight_decay
        clip = {"value": self.clip_value, "row_norm": self.clip_row_norm, "block_norm": self.clip_block_norm}
        clip = {name: bound for name, bound in clip.items() if bound}
        if clip:
            spec["clip"] = clip
        if self.schedule is not None:
            spec["schedule"] = dict(self.schedule)
        return spec


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= lr * g."""


@dataclass(frozen=True)
class Momentum(Optimizer):
    """m = momentum * m + g; w -= lr * m."""

    momentum: float = 0.9


@dataclass(frozen=True)
class Nesterov(Optimizer):
    """Nesterov's momentum in Sutskever's form."""

    momentum: float = 0.9


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Duchi et al. 2011: s += g^2; w -= lr * g / (sqrt(s) + epsilon)."""

    initial_accumulator: float = 0.0
    epsilon: float = 1e-7


@dataclass(frozen=True)
class RowwiseAdagrad(Adagrad):
    """Adagrad with one accumulator per row, of the mean of its squared gradients, as DLRM's: rows take nearly half the
    memory. Dense tables get Adagrad."""

    def _kind(self) -> str:
        return "rowwise_adagrad"


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Hinton 2012: s = rho * s + (1 - rho) * g^2; w -= lr * g / (sqrt(s) + epsilon)."""

    rho: float = 0.9
    epsilon: float = 1e-7


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba 2015, with bias correction by the block's or row's own step count."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True)
class AdamW(Adam):
    """Loshchilov and Hutter 2019: Adam with decoupled weight decay."""


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """McMahan et al. 2013, follow the regularized leader, per coordinate."""

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True)
class Lion(Optimizer):
    """Chen et al. 2023. Every step is of one size, so that `lr` is 3 to 10 times smaller than Adam's."""

    beta1: float = 0.9
    beta2: float = 0.99


@dataclass(frozen=True)
class Initializer:
    """What values start from: a function of the cluster's seed, the table and the key or index. Use a subclass."""

    def spec(self) -> Spec:
        """As Initializer of proto/table.proto."""
        return {type(self).__name__.lower(): {f.name: getattr(self, f.name) for f in fields(self)}}


@dataclass(frozen=True)
class Zeros(Initializer):
    """All zero."""


@dataclass(frozen=True)
class Constant(Initializer):
    """All `value`."""

    value: float = 0.0


@dataclass(frozen=True)
class Uniform(Initializer):
    """Uniform in [low, high)."""

    low: float = -0.05
    high: float = 0.05


@dataclass(frozen=True)
class Normal(Initializer):
    """Normal."""

    mean: float = 0.0
    stddev: float = 0.01


@dataclass(frozen=True)
class Xavier(Initializer):
    """Glorot and Bengio 2010, uniform in +-sqrt(6 / (fan_in + fan_out)) of a [fan_in, fan_out] dense table."""


@dataclass(frozen=True)
class He(Initializer):
    """He et al. 2015, normal with stddev sqrt(2 / fan_in) of a [fan_in, fan_out] dense table."""


def spec_of(part: Union[Optimizer, Initializer, Mapping[str, Any]]) -> Spec:
    """As the message of proto/table.proto, of an object of this module or of what has its form already."""
    return part.spec() if isinstance(part, (Optimizer, Initializer)) else dict(part)
