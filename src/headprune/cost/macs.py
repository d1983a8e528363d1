"""Parameters and multiply-accumulate operations (MACs) of a model, by part.

MACs are counted by PyTorch's own counter during one forward pass, so every matrix product is seen, whatever module
or function it is in. Element-wise work (norms, activations, softmax) is not counted, as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from headprune.heads import HeadMap
from headprune.patches import no_multihead_fast_path
from headprune.structure.run import run, same_draws
from headprune.types import Batch

PARTS = ("projections", "attention", "feed_forward", "embeddings", "head")


@dataclass(frozen=True)
class Count:
    """A total and its parts. `attention` is the part between the projections: scores, position tables, sinks."""

    total: int
    parts: Mapping[str, int]

    @classmethod
    def of(cls, parts: Mapping[str, int]) -> Count:
        return cls(sum(parts.values()), dict(parts))


def count_parameters(model: nn.Module, heads: HeadMap) -> Count:
    """Each parameter once, however many modules share it."""
    part_of = _Parts(model, heads)
    parts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        parts[part_of.parameter(name)] += parameter.numel()
    return Count.of(parts)


def count_macs(model: nn.Module, heads: HeadMap, example: Batch) -> Count:
    """MACs of one forward pass on `example`."""
    with torch.no_grad(), same_draws(model), _frozen(model), _counted() as counter:
        run(model, example)
    part_of = _Parts(model, heads)
    parts = dict.fromkeys(PARTS, 0)
    for path, operations in _own_counts(counter.get_flop_counts(), type(model).__name__).items():
        for operation, flops in operations.items():
            parts[part_of.operation(path, str(operation))] += flops // 2
    return Count.of(parts)


def count_macs_of(work: Callable[[], object]) -> int:
    """MACs of everything that `work` runs: a whole beam search, say."""
    with torch.no_grad(), _counted() as counter:
        work()
    return int(counter.get_total_flops()) // 2


@contextmanager
def _counted() -> Iterator[FlopCounterMode]:
    with no_multihead_fast_path(), FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        yield counter


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No weight asks for gradients: the counter stumbles over weights that are passed to a module as arguments."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _own_counts(counts: Mapping[str, Mapping[object, int]], root: str) -> dict[str, dict[object, int]]:
    """Operations of each module without those of its children."""
    by_path = {path: dict(operations) for path, operations in counts.items() if path != "Global"}
    own = {path: dict(operations) for path, operations in by_path.items()}
    for path, operations in by_path.items():
        parent, dot, _ = path.rpartition(".")
        while dot and parent not in own:  # containers (lists of layers) have no forward of their own
            parent, dot, _ = parent.rpartition(".")
        if parent in own and dot:
            for operation, flops in operations.items():
                own[parent][operation] -= flops
    return {path.removeprefix(root).removeprefix("."): operations for path, operations in own.items()}


class _Parts:
    """Which part of the model a module belongs to."""

    def __init__(self, model: nn.Module, heads: HeadMap) -> None:
        self.blocks = {site.path: site for site in heads.attention}
        self.model = model
        base = getattr(model, "base_model_prefix", "")
        self.base = f"{base}." if base and isinstance(getattr(model, base, None), nn.Module) else ""
        self.embeddings = _embedding_paths(model)
        self.outputs = {path for path, module in model.named_modules() if module is _output_embeddings(model)}

    def parameter(self, name: str) -> str:
        path, _, _ = name.rpartition(".")
        block = self._block(path)
        if block is None:
            return self._outside(path)
        module = self.model.get_submodule(path)
        return "projections" if _is_weight_of_product(module) else "attention"

    def operation(self, path: str, operation: str) -> str:
        block = self._block(path)
        if block is None:
            return self._outside(path)
        is_product = any(name in operation for name in ("mm", "linear", "conv")) and "bmm" not in operation
        return "projections" if is_product else "attention"

    def _block(self, path: str) -> str | None:
        return next((block for block in self.blocks if f"{path}.".startswith(f"{block}.")), None)

    def _outside(self, path: str) -> str:
        if any(f"{path}.".startswith(f"{embedding}.") for embedding in self.embeddings):
            return "embeddings"
        if path in self.outputs or (self.base and not f"{path}.".startswith(self.base)):
            return "head"
        return "feed_forward"


def _is_weight_of_product(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return not isinstance(module, nn.Embedding) and isinstance(weight, torch.Tensor) and weight.dim() == 2


def _output_embeddings(model: nn.Module) -> nn.Module | None:
    get = getattr(model, "get_output_embeddings", None)
    return get() if callable(get) else None


def _embedding_paths(model: nn.Module) -> set[str]:
    """Modules called embeddings of some kind, and every table of vectors."""
    found = set()
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(module, nn.Embedding) or name in ("embeddings", "patch_embed", "feature_extractor"):
            found.add(path)
    return found


Shape = Sequence[int]


def _attention_flops(query: Shape, key: Shape, value: Shape, *args: object, **kwargs: object) -> int:
    """Scores and weighted sum of fused attention, from the shapes (batch, heads, length, width); keys may be of fewer
    heads than queries."""
    batch, heads, queries, width = query
    return int(2 * batch * heads * queries * key[2] * (width + value[3]))


def _grouped_flops(
    a: Tensor, b: Tensor, *args: object, offs: Tensor | None = None, out_val: object = None, **kwargs: object
) -> int:
    """Products of runs of rows, each with a matrix of its own. Rows behind the last run are of nobody's."""
    offs = next((given for given in args if isinstance(given, Tensor) and not given.is_floating_point()), offs)
    if a.dim() == b.dim():  # both of as many matrices, or both cut along what is summed over
        return 2 * a.numel() * b.shape[-1]
    rows, matrix = (a, b) if a.dim() == 2 else (b.t(), a)
    used = len(rows) if offs is None or not len(offs) else int(offs[-1])
    return 2 * used * matrix.shape[-2] * matrix.shape[-1]


_grouped_flops._get_raw = True  # type: ignore[attr-defined]  # torch's counter hands over tensors instead of shapes


def _each_entry(tensor: Shape, *args: object, **kwargs: object) -> int:
    return 2 * math.prod(tensor)


def _each_entry_of_second(added: Shape, tensor: Shape, *args: object, **kwargs: object) -> int:
    return 2 * math.prod(tensor)


def _added_products(added: Shape, a: Shape, b: Shape, *args: object, **kwargs: object) -> int:
    return 2 * math.prod(a) * b[-1]


def _recurrent_flops(inputs: Shape, of_input: Shape, of_state: Shape, *args: object, **kwargs: object) -> int:
    return 2 * math.prod(inputs[:-1]) * (math.prod(of_input) + math.prod(of_state))


def _formulas() -> dict[object, Callable[..., int]]:
    """Products that PyTorch's counter leaves out: it knows the plain ones, and the fused kernels of a GPU.

    The fused kernels of whole encoder layers are not here: they are switched off while counting, because their parts
    belong to different parts of the model.
    """
    aten = torch.ops.aten
    fallback = getattr(torch.ops.transformers, "grouped_mm_fallback", None)  # made when its module is imported
    return {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
        aten._scaled_dot_product_fused_attention_overrideable: _attention_flops,
        aten._grouped_mm: _grouped_flops,
        **({fallback: _grouped_flops} if fallback is not None else {}),
        aten.mv: _each_entry,
        aten.dot: _each_entry,
        aten.vdot: _each_entry,
        aten.addmv: _each_entry_of_second,
        aten.addbmm: _added_products,
        aten._addmm_activation: _added_products,
        aten.mkldnn_rnn_layer: _recurrent_flops,
    }
