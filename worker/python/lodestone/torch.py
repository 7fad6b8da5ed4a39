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
import warnings
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple, TypeVar, Union

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._call import Call
from ._cluster import Cluster
from ._errors import InvalidArgument
from ._spec import Adam, Constant, Initializer, Normal, Optimizer, Uniform, Zeros
from ._tables import Dense
from ._tables import Embedding as Rows

Batch = TypeVar("Batch")

# A uniform distribution's fourth moment over its variance squared is 1.8, a normal one's 3.
_KURTOSIS_BETWEEN = 2.4


class _Pull:
    """Rows of a batch's distinct keys, on their way."""

    def __init__(self, table: Rows, keys: Tensor):
        self.keys = keys
        distinct, self.inverse = torch.unique(keys.detach().cpu(), return_inverse=True)
        self.distinct = distinct
        # A device copies by itself from pinned memory.
        self._values = torch.empty((distinct.numel(), table.dim), dtype=torch.float32, device="cpu",
                                   pin_memory=keys.is_cuda)
        self.call: Call[Any] = table.pull(distinct, self._values)

    def rows(self, device: torch.device) -> Tensor:
        self.call.result()
        return self._values.to(device, non_blocking=True)


class _Remote(nn.Module):
    """What embeddings have in common: pulls before forward, pushes in backward."""

    def __init__(self, table: Rows, remember: bool = False):
        super().__init__()
        if not isinstance(table, Rows):
            raise InvalidArgument("an embedding needs a table of rows: cluster.embedding(name, dim, ...)")
        self.table = table
        self._used: Optional[Set[int]] = set() if remember else None
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

    def drop_pulls(self) -> None:
        """Forgets what start_pull has asked for and forward has not got."""
        self._pulls.clear()

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Adds up the gradients of the backward passes in a `with` block, and pushes them at its end; those of a block that
        raises are dropped."""
        collected: List[Tuple[Tensor, Tensor, Call[Any]]] = []
        self._collects += 1
        try:
            yield
        finally:
            self._collects -= 1
            if self._collects == 0:
                collected, self._collected = self._collected, []
        if collected:
            keys = torch.cat([of for of, _, _ in collected])
            # Of keys that come in several passes the library adds the gradients up.
            self.table.push(keys, torch.cat([gradient for _, gradient, _ in collected]), read=collected[0][2])

    def _leaf(self, keys: Tensor) -> Tuple[Tensor, Tensor]:
        """The rows of the distinct keys, whose gradient is pushed once backward has it, and each key's row in them."""
        pull = self._take(keys)
        if self._used is not None:
            self._used.update(pull.distinct.tolist())
        rows = pull.rows(keys.device)
        if torch.is_grad_enabled() and self.training:
            rows.requires_grad_()
            register: Callable[..., Any] = rows.register_hook  # Which PyTorch has not annotated.
            register(lambda gradient: self._push(pull, gradient))
        return rows, pull.inverse.to(keys.device)

    def _take(self, keys: Tensor) -> _Pull:
        for i, pull in enumerate(self._pulls):
            if pull.keys is keys or (pull.keys.shape == keys.shape and torch.equal(pull.keys.cpu(), keys.cpu())):
                for _ in range(i + 1):  # Batches before it were skipped.
                    self._pulls.popleft()
                return pull
        return _Pull(self.table, keys)

    def rows_of(self, keys: Tensor) -> Dict[str, Tensor]:
        """The newest rows of these keys, in the form of state_dict(): {"keys": int64 [n], "values": [n, dim]}, ascending."""
        distinct = torch.unique(keys.detach().cpu().long())
        return {"keys": distinct, "values": torch.from_numpy(self.table.pull(distinct).result())}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """With `remember`: the rows of all keys that this process has used. They are the cluster's newest."""
        if self._used is not None:
            rows = self.rows_of(torch.tensor(sorted(self._used), dtype=torch.int64, device="cpu"))
            destination.update({prefix + name: tensor for name, tensor in rows.items()})

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: List[str],
                              unexpected_keys: List[str], error_msgs: List[str]) -> None:
        """Sets the cluster's rows of the keys that a state has; others, and those of a state without any, stay."""
        keys, values = state_dict.get(prefix + "keys"), state_dict.get(prefix + "values")
        if keys is None and values is None:
            return
        if keys is None or values is None or tuple(values.shape) != (keys.numel(), self.table.dim):
            shapes = [None if of is None else list(of.shape) for of in (keys, values)]
            error_msgs.append(f"{prefix}keys and {prefix}values must be [n] and [n, {self.table.dim}], and are {shapes}")
            return
        self.table.assign(keys, values)
        self.drop_pulls()
        if self._used is not None:
            self._used.update(keys.tolist())

    def _push(self, pull: _Pull, gradient: Tensor) -> None:
        if self._collects > 0:
            self._collected.append((pull.distinct, gradient.detach().float().cpu(), pull.call))
        else:
            self.table.push(pull.distinct, gradient, read=pull.call)


class Embedding(_Remote):
    """nn.Embedding with rows on the cluster: keys of any shape [...], any 64-bit integers, give [..., dim].

    state_dict() has no rows, which are the cluster's and its checkpoints'; with remember=True it has those of the keys that
    this process has used, as "keys" and "values". load_state_dict() sets the cluster's rows (Cluster.assign).
    """

    def forward(self, keys: Tensor) -> Tensor:  # pylint: disable=arguments-differ
        rows, inverse = self._leaf(keys)
        return functional.embedding(inverse, rows)


class EmbeddingBag(_Remote):
    """nn.EmbeddingBag with rows on the cluster: the sum or mean of each bag's rows.

    keys: [n] with `offsets` [bags], where each bag begins, or [bags, n] without. mode: "sum", "mean" or "max". remember: as
    Embedding's.
    """

    def __init__(self, table: Rows, mode: str = "mean", remember: bool = False):
        super().__init__(table, remember)
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
        self.bags = nn.ModuleDict()
        # A prefix, as a ModuleDict takes no name of its own attributes, such as "items", nor one with dots.
        self._features = {name: "feature_" + name.replace(".", "_") for name in tables}
        for name, table in tables.items():
            self.bags[self._features[name]] = EmbeddingBag(table, mode)
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


def prefetch(loader: Iterable[Batch], keys: Mapping[Any, Callable[[Batch], Tensor]], ahead: int = 1) -> Iterator[Batch]:
    """The batches of a loader, with the rows of the next `ahead` ones asked for before they are needed.

    keys: for each embedding, what gives its keys of a batch, as forward gets them. Each batch ahead makes rows lack one
    more of the program's own pushes.
    """
    waiting: Deque[Batch] = collections.deque()
    try:
        for batch in loader:
            for module, of in keys.items():
                module.start_pull(of(batch))
            waiting.append(batch)
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:  # Also where the program leaves its loop: rows that were asked for then are too old for what comes later.
        for module in keys:
            module.drop_pulls()


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
    (initializer_like), and not from the module's own: where these matter (padding_idx, of which it warns; a matrix that is
    orthogonal; weights of another training), one worker sets them, before the others push:
    `state = copy.deepcopy(module.state_dict())` before the constructor, and load_state_dict(state) after it. The
    constructor brings the cluster's values into the module. `tables` has tables of your own by parameter's name, with
    their own optimizers and initial values; `settings` are more of Cluster.dense's for the others.

    step() pushes the gradients of all parameters as one update, and takes over the values that this led to, with the
    other workers' updates. With overlap=True they are taken over at the next step instead, so that the exchange goes on
    during the next batch, whose gradients then lack one update of this worker.
    """

    def __init__(self, module: nn.Module, cluster: Cluster, optimizer: Union[Optimizer, Mapping[str, Any]] = Adam(1e-3),
                 *, prefix: str = "", overlap: bool = False, tables: Optional[Mapping[str, Dense]] = None, **settings: Any):
        self._module = module
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise InvalidArgument("the module has no parameters that are trained")
        self._cluster = cluster
        self._overlap = overlap
        self._steps = 0
        self._tables: Dict[str, Dense] = {}
        for name, parameter in self._parameters.items():
            shape = tuple(parameter.shape) or (1,)
            if tables is not None and name in tables:
                self._tables[name] = tables[name]
                if tables[name].shape != shape:
                    raise InvalidArgument(f"parameter {name} is {list(shape)}, and its table `{tables[name].name}` "
                                          f"{list(tables[name].shape)}")
                continue
            self._tables[name] = cluster.dense(prefix + name, shape, optimizer, initializer_like(parameter), **settings)
        self._staged = {name: torch.empty(table.shape, dtype=torch.float32, device="cpu",
                                          pin_memory=self._parameters[name].is_cuda)
                        for name, table in self._tables.items()}
        self._read: Optional[Call[Any]] = None  # Whose values the module has.
        self._pending: Optional[Call[Any]] = cluster.pull(self._tables.values(), self._out())
        padding = self._padding()
        self._take()
        for name, (row, values) in padding.items():
            if not torch.equal(self._parameters[name][row], values):
                warnings.warn(f"row {row} of parameter {name}, its padding_idx, begins with other values than the module's, "
                              "and gets no gradients: have one worker set them by load_state_dict()", stacklevel=2)

    def _padding(self) -> Dict[str, Tuple[int, Tensor]]:
        """The rows of padding, and their values, by parameter's name."""
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        found: Dict[str, Tuple[int, Tensor]] = {}
        for module in self._module.modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.padding_idx is not None \
                    and id(module.weight) in names:
                row = module.weight.detach()[module.padding_idx].clone()
                found[names[id(module.weight)]] = (module.padding_idx, row)
        return found

    def _out(self) -> Dict[Any, Tensor]:
        return {table: self._staged[name] for name, table in self._tables.items()}

    @torch.no_grad()
    def _take(self) -> None:
        """Brings the values of the exchange under way into the module."""
        call = self._pending
        if call is None:
            return
        try:
            call.result()  # After Ctrl-C it still is the one under way, and is taken later.
        except Exception:
            self._pending = None
            raise
        for name, parameter in self._parameters.items():
            parameter.copy_(self._staged[name].reshape(parameter.shape), non_blocking=True)
        for device in {parameter.device for parameter in self._parameters.values() if parameter.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # The staged values are written again.
        self._read, self._pending = call, None

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
        """The module's own state_dict(), on the host, with the newest values of the cluster: module.load_state_dict and
        torch.save take it. (The optimizer's state stays on the servers, in whose checkpoints it is.)"""
        self.refresh()
        return {name: tensor.detach().cpu().clone() for name, tensor in self._module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> None:
        """Sets the values of the cluster, for all workers, to those of a state_dict() of the module, of this class or of
        PyTorch's own. One worker calls it, while the others do not push (Cluster.assign); they have the values after their
        next step() or refresh(). What does not fit the module raises RuntimeError, as module.load_state_dict does."""
        self._take()
        self._module.load_state_dict(dict(state), strict)
        self._cluster.assign({table: self._parameters[name].detach().reshape(table.shape)
                              for name, table in self._tables.items()})
        self.refresh()
