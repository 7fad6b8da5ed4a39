"""Lodestone for PyTorch: embeddings whose rows live on the cluster, and an optimizer whose parameters do.

    items = lodestone.torch.EmbeddingBag(cluster.embedding("items", 16, lodestone.Adagrad(0.1)), mode="mean")
    optimizer = lodestone.torch.AsyncOptimizer(tower, cluster, lodestone.Adam(1e-3))
    for batch in lodestone.torch.prefetch(loader, {items: lambda batch: batch["ids"]}):
        optimizer.zero_grad()
        loss(tower(items(batch["ids"], batch["offsets"])), batch["label"]).backward()   # pushes the rows' gradients
        optimizer.step()                                                                # pushes the tower's
"""

from __future__ import annotations

import collections
import contextlib
import math
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._call import Call
from ._cluster import Cluster
from ._errors import InvalidArgument
from ._spec import Adam, Constant, Initializer, Normal, Optimizer, Uniform, Zeros
from ._tables import Dense
from ._tables import Embedding as Rows

# A uniform distribution's fourth moment over its variance squared is 1.8, a normal one's 3.
_KURTOSIS_BETWEEN = 2.4


class _Pull:
    """Rows of a batch's distinct keys, on their way."""

    def __init__(self, table: Rows, keys: Tensor):
        self.keys = keys
        distinct, self.inverse = torch.unique(keys.detach().cpu(), return_inverse=True)
        self.distinct = distinct
        self.call: Call[Any] = table.pull(distinct)

    def rows(self, device: torch.device) -> Tensor:
        return torch.from_numpy(self.call.result()).to(device)


class _Remote(nn.Module):
    """What embeddings have in common: pulls before forward, pushes in backward."""

    def __init__(self, table: Rows):
        super().__init__()
        if not isinstance(table, Rows):
            raise InvalidArgument("an embedding needs a table of rows: cluster.embedding(name, dim, ...)")
        self.table = table
        self._pulls: Deque[_Pull] = collections.deque()
        self._collects = 0
        self._collected: List[Tuple[Tensor, Tensor, Call[Any]]] = []

    @property
    def embedding_dim(self) -> int:
        """Floats in a row."""
        return self.table.dim

    def start_pull(self, keys: Tensor) -> None:
        """Asks for the rows of a batch that forward gets later. What is pulled early lacks what is pushed meanwhile."""
        self._pulls.append(_Pull(self.table, keys))

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Adds up the gradients of the backward passes in a `with` block, and pushes them at its end."""
        self._collects += 1
        try:
            yield
        finally:
            self._collects -= 1
        if self._collects == 0 and self._collected:
            collected, self._collected = self._collected, []
            keys = torch.cat([of for of, _, _ in collected])
            # Of keys that come in several passes the library adds the gradients up.
            self.table.push(keys, torch.cat([gradient for _, gradient, _ in collected]), read=collected[0][2])

    def _leaf(self, keys: Tensor) -> Tuple[Tensor, Tensor]:
        """The rows of the distinct keys, whose gradient is pushed once backward has it, and each key's row in them."""
        pull = self._take(keys)
        rows = pull.rows(keys.device)
        if torch.is_grad_enabled() and self.training:
            rows.requires_grad_()
            rows.register_hook(lambda gradient: self._push(pull, gradient))
        return rows, pull.inverse.to(keys.device)

    def _take(self, keys: Tensor) -> _Pull:
        for i, pull in enumerate(self._pulls):
            if pull.keys is keys or (pull.keys.shape == keys.shape and torch.equal(pull.keys.cpu(), keys.cpu())):
                for _ in range(i + 1):  # Batches before it were skipped.
                    self._pulls.popleft()
                return pull
        return _Pull(self.table, keys)

    def _push(self, pull: _Pull, gradient: Tensor) -> None:
        if self._collects > 0:
            self._collected.append((pull.distinct, gradient.detach().float().cpu(), pull.call))
        else:
            self.table.push(pull.distinct, gradient, read=pull.call)


class Embedding(_Remote):
    """nn.Embedding with rows on the cluster: keys of any shape [...], any 64-bit integers, give [..., dim]."""

    def forward(self, keys: Tensor) -> Tensor:  # pylint: disable=arguments-differ
        rows, inverse = self._leaf(keys)
        return functional.embedding(inverse, rows)


class EmbeddingBag(_Remote):
    """nn.EmbeddingBag with rows on the cluster: the sum or mean of each bag's rows.

    keys: [n] with `offsets` [bags], where each bag begins, or [bags, n] without. mode: "sum", "mean" or "max".
    """

    def __init__(self, table: Rows, mode: str = "mean"):
        super().__init__(table)
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgument(f'mode must be "sum", "mean" or "max", and is "{mode}"')
        self.mode = mode

    def forward(self, keys: Tensor, offsets: Optional[Tensor] = None,  # pylint: disable=arguments-differ
                per_sample_weights: Optional[Tensor] = None) -> Tensor:
        rows, inverse = self._leaf(keys)
        return functional.embedding_bag(inverse, rows, offsets, mode=self.mode, per_sample_weights=per_sample_weights)


class EmbeddingBagCollection(nn.Module):
    """Embedding bags by feature, in the shape of TorchRec's: jagged features in, pooled embeddings by feature out.

    tables: {feature: table}; features may share a table. forward takes {feature: (keys [n], offsets [bags])}, or TorchRec's
    KeyedJaggedTensor, whose offsets are [bags + 1]; it gives {feature: [bags, dim]}.
    """

    def __init__(self, tables: Mapping[str, Rows], mode: str = "sum"):
        super().__init__()
        self.bags = nn.ModuleDict({name.replace(".", "_"): EmbeddingBag(table, mode) for name, table in tables.items()})
        self._features = {name: name.replace(".", "_") for name in tables}
        if len(self.bags) != len(self._features):
            raise InvalidArgument("two features differ only in their dots")

    def forward(self, features: Any) -> Dict[str, Tensor]:  # pylint: disable=arguments-differ
        jagged = self._jagged(features)
        for name, (keys, _) in jagged.items():  # All are on their way before the first is waited for.
            self.bags[self._features[name]].start_pull(keys)
        pooled = {}
        for name, (keys, offsets) in jagged.items():
            pooled[name] = self.bags[self._features[name]](keys, offsets)
        return pooled

    def _jagged(self, features: Any) -> Dict[str, Tuple[Tensor, Tensor]]:
        if isinstance(features, Mapping):
            return {name: features[name] for name in self._features}
        return {name: (features[name].values(), features[name].offsets()[:-1]) for name in self._features}


def prefetch(loader: Iterable[Any], keys: Mapping[_Remote, Callable[[Any], Tensor]], ahead: int = 1) -> Iterator[Any]:
    """The batches of a loader, with the rows of the next `ahead` ones asked for before they are needed.

    keys: for each embedding, what gives its keys of a batch, as forward gets them. Each batch ahead makes rows lack one
    more of the program's own pushes.
    """
    waiting: Deque[Any] = collections.deque()
    for batch in loader:
        for module, of in keys.items():
            module.start_pull(of(batch))
        waiting.append(batch)
        if len(waiting) > ahead:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def initializer_like(values: Tensor) -> Initializer:
    """What starts a table as `values` were drawn: all zero, all the same, uniform, or normal with their mean and spread.
    """
    flat = values.detach().double().flatten()
    if flat.numel() == 0 or not bool(flat.any()):
        return Zeros()
    mean, spread = float(flat.mean()), float(flat.std(unbiased=False))
    if spread <= 1e-12 * abs(mean):
        return Constant(float(flat[0]))
    kurtosis = float(((flat - mean) / spread).pow(4).mean())
    if kurtosis < _KURTOSIS_BETWEEN:
        half = spread * math.sqrt(3)
        return Uniform(mean - half, mean + half)
    return Normal(mean, spread)


class AsyncOptimizer:
    """An optimizer of a module whose parameters live on the cluster, where all its workers train them together.

    Each parameter is a dense table `prefix` + its name, and starts from the cluster's values: all workers', and those of
    a run that is continued, are the same. A table that is new starts from values drawn as the module's were
    (initializer_like). The constructor brings them into the module.

    step() pushes the gradients of all parameters as one update, and takes over the values that this led to, with the
    other workers' updates. With overlap=True they are taken over at the next step instead, so that the exchange goes on
    during the next batch, whose gradients then lack one update of this worker.
    """

    def __init__(self, module: nn.Module, cluster: Cluster, optimizer: Union[Optimizer, Mapping[str, Any]] = Adam(1e-3),
                 *, prefix: str = "", overlap: bool = False, **settings: Any):
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._buffers = dict(module.named_buffers())
        if not self._parameters:
            raise InvalidArgument("the module has no parameters that are trained")
        self._cluster = cluster
        self._overlap = overlap
        self._steps = 0
        self._tables: Dict[str, Dense] = {}
        for name, parameter in self._parameters.items():
            shape = tuple(parameter.shape) or (1,)
            self._tables[name] = cluster.dense(prefix + name, shape, optimizer, initializer_like(parameter), **settings)
        self._staged = {name: torch.empty(table.shape, pin_memory=self._parameters[name].is_cuda)
                        for name, table in self._tables.items()}
        self._read: Optional[Call[Any]] = None  # Whose values the module has.
        self._pending: Optional[Call[Any]] = cluster.pull(self._tables.values(), self._out())
        self._take()

    def _out(self) -> Dict[Any, Tensor]:
        return {table: self._staged[name] for name, table in self._tables.items()}

    @torch.no_grad()
    def _take(self) -> None:
        """Brings the values of the exchange under way into the module."""
        call, self._pending = self._pending, None
        if call is None:
            return
        call.result()
        for name, parameter in self._parameters.items():
            parameter.copy_(self._staged[name].reshape(parameter.shape))
        self._read = call

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim's."""
        for parameter in self._parameters.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def step(self, loss: Optional[float] = None, samples: int = 0) -> None:
        """Pushes the gradients, which accumulate over backward passes as in torch.optim, and refreshes the module.
        `loss` and `samples` (so far) are reported to the cluster."""
        read = self._read
        gradients = {self._tables[name]: parameter.grad.reshape(self._tables[name].shape)
                     for name, parameter in self._parameters.items() if parameter.grad is not None}
        if not gradients:
            raise InvalidArgument("no parameter has a gradient: call backward() before step()")
        self._take()  # The staged values are written again.
        self._steps += 1
        self._pending = self._cluster.push_pull(gradients, self._tables.values(), self._out(), read=read)
        if not self._overlap:
            self._take()
        if loss is not None:
            self._cluster.report(clock=self._steps, samples=samples, loss=float(loss))

    def refresh(self) -> None:
        """Brings the newest values of the cluster into the module, without a push: before an evaluation, say."""
        self._take()
        self._pending = self._cluster.pull(self._tables.values(), self._out())
        self._take()

    def state_dict(self) -> Dict[str, Tensor]:
        """The newest values of the cluster by parameter's name, and the module's own buffers: module.load_state_dict
        takes it. (The optimizer's state stays on the servers, in whose checkpoints it is.)"""
        self.refresh()
        state = {name: p.detach().cpu().clone() for name, p in self._parameters.items()}
        state.update({name: buffer.detach().cpu().clone() for name, buffer in self._buffers.items()})
        return state
