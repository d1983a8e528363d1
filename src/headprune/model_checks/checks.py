"""What a model must pass: the equalities that every pruning rests on."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headprune.cost.macs import count_macs
from headprune.errors import VerificationError
from headprune.heads import HeadMap, HeadMask
from headprune.masking import masked
from headprune.structure import projections
from headprune.structure.find import find_heads
from headprune.structure.projections import projection_at
from headprune.structure.run import difference, run, same_attributes, same_draws
from headprune.surgery.prune import parameter_gradients, prune_
from headprune.surgery.remove import double_precision

checks: dict[str, Callable[[CheckedModel], None]] = {}  # in the order in which they are done and told
CORE = ("found", "masked", "pruned", "reloaded")


def add_check(name: str) -> Callable[[Callable[[CheckedModel], None]], Callable[[CheckedModel], None]]:
    def add(function: Callable[[CheckedModel], None]) -> Callable[[CheckedModel], None]:
        checks[name] = function
        return function

    return add


class NotApplicableError(Exception):
    """The family has no such thing."""


class Refused(Exception):  # noqa: N818  # not an error: an answer
    """The check cannot be passed, for a reason that is told."""


@dataclass
class CheckedModel:
    """A model with its heads and an example of its inputs, and what the checks share."""

    model: nn.Module
    example: Mapping[str, Any]
    heads: HeadMap
    eager: Callable[[], nn.Module] | None = None  # the same model with eager attention, where it can be built anew
    compared: list[nn.Module] = field(default_factory=list)  # without one unit each: pruned, and saved and loaded

    @cached_property
    def one_fewer(self) -> HeadMask:
        """Every site without one head, or without one group where heads share keys and values."""
        return one_unit_fewer(self.heads)

    @property
    def ends(self) -> set[str]:
        """The first and the last site."""
        return {self.heads.sites[0].id, self.heads.sites[-1].id}

    @cached_property
    def batch(self) -> dict[str, Any]:
        return padded(self.example)

    def answer(self, model: nn.Module, batch: Mapping[str, object] | None = None) -> Any:
        with torch.no_grad():
            return run(model, self.batch if batch is None else batch)

    def masked_answer(self, mask: Any, batch: Mapping[str, Any] | None = None, model: nn.Module | None = None) -> Any:
        model = model or self.model
        with masked(model, mask, heads=self.heads):
            return self.answer(model, batch)

    def pruned(self, mask: HeadMask) -> nn.Module:
        """A pruned copy."""
        return prune_(copy.deepcopy(self.model), mask, example=self.example)


def one_unit_fewer(heads: HeadMap, which: int = 0) -> HeadMask:
    """Every site without a group; of a site whose heads are all one group, one head."""
    gone = []
    for site in heads:
        group = site.groups[which] if len(site.groups) > 1 else site.groups[0][:1]
        gone += [f"{site.id}:{head}" for head in group]
    return HeadMask.full(heads).without(*gone)


def padded(batch: Mapping[str, object], *, left: bool = False) -> dict[str, Any]:
    """The same batch with the end of its second text hidden (or its beginning, as for writing on), where it has a mask
    and nothing but text."""
    mask = batch.get("attention_mask")
    text = {"input_ids", "attention_mask", "decoder_input_ids"}
    if not isinstance(mask, Tensor) or mask.dim() != 2 or not batch.keys() <= text:
        return dict(batch)
    hidden = mask.clone()
    hidden[1, slice(2) if left else slice(mask.shape[1] // 2 + 1, None)] = 0
    return {**batch, "attention_mask": hidden}


def check_same(found: object, expected: object, what: str, *, exactly: bool = False) -> None:
    gap = difference(found, expected)
    if not gap.is_small or (exactly and gap.largest):
        raise VerificationError(f"{what}: differs by {gap.largest:.1e}")


@add_check("found")
def _found(subject: CheckedModel) -> None:
    """Nothing that looks like softmax attention was left aside."""
    left = [item for item in subject.heads.skipped if item.has_heads]
    if left:
        told = "; ".join(f"{item.path}: {item.reason}" for item in left[:2])
        raise Refused(told)


@add_check("masked")
def _masked(subject: CheckedModel) -> None:
    """A mask of ones changes no bit; masking a head changes the answer, at every site."""
    plain = subject.answer(subject.model)
    ones = {site.id: torch.ones(site.num_heads, requires_grad=True) for site in subject.heads}
    check_same(subject.masked_answer(ones), plain, "a mask of ones", exactly=True)
    for site in subject.heads:
        full = HeadMask.full(subject.heads)
        one, every = (difference(subject.masked_answer(full.without(x)), plain) for x in (f"{site.id}:0", site.id))
        if not one.largest == 0.0 < every.largest:  # a site whose answer this class does not use changes nothing at all
            continue
        if not _changes_in_double(subject, full.without(f"{site.id}:0")):
            raise VerificationError(f"masking {site.id}:0 changes nothing")


def _changes_in_double(subject: CheckedModel, mask: HeadMask) -> bool:
    """Whether a mask changes the answer, where random layers after the site leave little of it (MobileViT)."""
    with double_precision(subject.model):
        return difference(subject.masked_answer(mask), subject.answer(subject.model)).largest > 0.0


@add_check("pruned")
def _pruned(subject: CheckedModel) -> None:
    """Removed = masked, one head or group of every site at once, on a whole and on a padded batch."""
    pruned = subject.pruned(subject.one_fewer)
    for batch in (subject.example, subject.batch):
        check_same(subject.answer(pruned, batch), subject.masked_answer(subject.one_fewer, batch), "pruned and masked")
    left = len(find_heads(pruned, subject.example))
    if left != len(subject.one_fewer):
        raise VerificationError(f"{left} heads are found after pruning, {len(subject.one_fewer)} should be left")


@add_check("reloaded")
def _reloaded(subject: CheckedModel) -> None:
    """Saved = loaded, bit for bit, with ragged layers; and again after saving what was loaded."""
    subject.compared[:] = _round_trip(subject, subject.one_fewer)


@add_check("emptied")
def _emptied(subject: CheckedModel) -> None:
    """The first and the last site without heads, and all of them: as with all heads masked, no layer of width zero."""
    full = HeadMask.full(subject.heads)
    for mask in (full.without(*subject.ends), HeadMask.empty(subject.heads)):
        pruned = subject.pruned(mask)
        check_same(subject.answer(pruned), subject.masked_answer(mask), "emptied and masked")
        if _zero_widths(pruned) > _zero_widths(subject.model):
            raise VerificationError("a layer of width zero is left")


def _zero_widths(model: nn.Module) -> int:
    return sum(0 in parameter.shape for parameter in model.parameters())


@add_check("emptied and reloaded")
def _emptied_reloaded(subject: CheckedModel) -> None:
    """Saved = loaded with sites that lost all their heads."""
    _round_trip(subject, subject.one_fewer.without(*subject.ends))


@add_check("pruned twice")
def _twice(subject: CheckedModel) -> None:
    """Two prunings equal one mask; heads keep the numbers of the original model."""
    pruned = subject.pruned(one_unit_fewer(subject.heads, which=-1))
    left = find_heads(pruned, subject.example)
    if any(not site.num_heads for site in left):
        raise NotApplicableError
    second = one_unit_fewer(left)
    prune_(pruned, second, example=subject.example)
    check_same(subject.answer(pruned), subject.masked_answer(second), "pruned twice and masked")


@add_check("generates")
def _generates(subject: CheckedModel) -> None:
    """The pruned model writes the masked model's text, with a cache and without, also where sites are empty."""
    if not getattr(subject.model, "can_generate", lambda: False)() or "input_ids" not in subject.example:
        raise NotApplicableError
    whole = {k: v for k, v in subject.example.items() if k != "decoder_input_ids"}
    prompt = next((p for p in (padded(whole, left=True), whole) if _writes(subject.model, p)), None)
    if prompt is None:
        raise NotApplicableError
    firsts = {site.component: site.id for site in reversed(subject.heads.sites)}  # by which a cache counts
    compared = 0
    for mask in (subject.one_fewer, subject.one_fewer.without(*firsts.values())):
        pruned = subject.pruned(mask)
        for use_cache in (True, False):
            try:
                with masked(subject.model, mask, heads=subject.heads):
                    expected = _written(subject.model, prompt, use_cache=use_cache)
            except Exception:  # it wrote what it cannot read again, such as the token of a picture
                continue
            found = _written(pruned, prompt, use_cache=use_cache)
            if found.text != expected.text:
                raise VerificationError(f"the pruned model writes another text than the masked one, {use_cache=}")
            check_same(found.logits, expected.logits, f"what is behind the same text, {use_cache=}")
            compared += 1
    if not compared:
        raise NotApplicableError


@dataclass(frozen=True)
class _Written:
    text: Any
    logits: tuple[Tensor, ...]  # a tiny model may write one text with whatever is in its cache; its numbers tell


def _writes(model: nn.Module, prompt: dict[str, Any]) -> bool:
    """Whether the whole model writes from such a prompt, with a cache and without: one token, so that it need not read
    what it wrote."""
    try:
        for use_cache in (True, False):
            _written(model, prompt, use_cache=use_cache, tokens=1)
    except Exception:
        return False
    return True


def _written(model: Any, prompt: dict[str, Any], *, use_cache: bool, tokens: int = 5) -> _Written:
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "use_cache": use_cache}
    with same_attributes(model), same_draws(model):
        written = model.generate(**prompt, **settings, output_logits=True, return_dict_in_generate=True)
    return _Written(getattr(written, "sequences", written).tolist(), getattr(written, "logits", None) or ())


@add_check("eager")
def _eager(subject: CheckedModel) -> None:
    """Removed = masked under eager attention too; `output_attentions` has a map for every head that is left."""
    model = subject.eager() if subject.eager is not None else _with_eager_attention(subject.model)
    with torch.no_grad():
        if has_nan(run(model, subject.example)):  # rows that see nothing at all, which fused attention forgives
            raise NotApplicableError
    heads = find_heads(model, subject.example)
    eager = CheckedModel(model, subject.example, heads)
    pruned = eager.pruned(eager.one_fewer)
    check_same(eager.answer(pruned), eager.masked_answer(eager.one_fewer), "pruned and masked")
    before, after = (_map_heads(one, eager.batch) for one in (model, pruned))
    others = len(before) - sum(len(site.layers) for site in heads)  # maps of something else: they stay as they are
    for old, new in zip(before, after, strict=True):
        kept = {len(eager.one_fewer.kept(site.id)) * n for n in (1, 2) for site in heads if site.num_heads * n == old}
        kept |= {1} if 0 in kept else set()  # of a site without heads, the placeholder's
        if new in kept:  # two maps a head in differential attention
            continue
        others -= 1
        if others < 0 or new != old:
            raise VerificationError(f"maps of {after} heads after pruning, of {before} before")


def _with_eager_attention(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    switch = getattr(other, "set_attn_implementation", None)
    if switch is None:
        raise NotApplicableError
    switch("eager")
    return other


def has_nan(answer: object) -> bool:
    values = answer.to_tuple() if hasattr(answer, "to_tuple") else (answer,)
    return any(isinstance(value, Tensor) and bool(value.isnan().any()) for value in values)


def _map_heads(model: nn.Module, batch: Mapping[str, object]) -> list[int]:
    """How many heads each attention map has that the model hands out."""
    try:
        with torch.no_grad():
            output = model(**batch, output_attentions=True)
    except (TypeError, ValueError):  # it hands out none
        return []
    found = []
    for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        maps = output.get(name) if hasattr(output, "get") else None
        found += [m.shape[1] for m in maps or () if isinstance(m, Tensor) and m.dim() == 4]
    return found


@add_check("counted")
def _counted(subject: CheckedModel) -> None:
    """As many MACs with fused attention and experts as with eager ones, part by part."""
    try:
        eager = subject.eager() if subject.eager is not None else _with_eager_attention(subject.model)
        for switch in filter(None, [getattr(eager, "set_experts_implementation", None)]):
            switch("eager")
        with torch.no_grad():
            run(eager, subject.example)
    except NotApplicableError:
        raise
    except Exception as error:  # a family without eager attention, or whose eager code does not take the example
        raise NotApplicableError from error
    if sum(p.numel() for p in eager.parameters()) != sum(p.numel() for p in subject.model.parameters()):
        raise NotApplicableError  # another tiny size was needed for eager attention
    fused, one_by_one = (count_macs(model, subject.heads, subject.example) for model in (subject.model, eager))
    if fused != one_by_one:
        raise VerificationError(f"MACs are counted as {fused.parts} fused and as {one_by_one.parts} eager")


@add_check("bf16")
def _bf16(subject: CheckedModel) -> None:
    """Removed = masked within the tolerance of half precision."""
    half = copy.deepcopy(subject.model).to(torch.bfloat16)
    try:
        expected = subject.masked_answer(subject.one_fewer, model=half)
    except Exception as error:  # not our doing: the model itself does not run so
        raise NotApplicableError from error
    if find_heads(half, subject.example).original_counts() != subject.heads.original_counts():
        raise Refused("in half precision other sites are found than in single precision")
    pruned = prune_(half, subject.one_fewer, example=subject.example, verify=False)
    gap = difference(subject.answer(pruned), expected)
    # Both are as far from the exact answer as half precision is, so at most twice that from each other.
    rounding = difference(expected, subject.masked_answer(subject.one_fewer))
    if not gap.is_small and gap.largest > 2 * rounding.largest:
        raise VerificationError(
            f"pruned and masked: differs by {gap.largest:.1e}, half precision by itself {rounding.largest:.1e}"
        )


@add_check("trains")
def _trains(subject: CheckedModel) -> None:
    """Gradients reach what is left of the projections, under gradient checkpointing where the family has it."""
    # A site that loses all heads may be the only way from input to output, and then nothing trains: it is spared.
    kept = {site.id: subject.one_fewer.kept(site.id) or site.kept for site in subject.heads}
    pruned: Any = subject.pruned(HeadMask(kept, subject.heads.original_counts()))
    if not _trainable(copy.deepcopy(subject.model), subject):
        raise NotApplicableError
    _backward(pruned, subject)
    if not _reached_by_gradients(pruned, subject):
        raise VerificationError("no gradient reaches the output projections")


@add_check("gradients everywhere")
def _gradients_everywhere(subject: CheckedModel) -> None:
    """Every parameter that is trained and had a gradient before has one after sites lost all their heads."""
    before = parameter_gradients(subject.model, subject.example)
    for mask in (subject.one_fewer.without(*subject.ends), HeadMask.empty(subject.heads)):
        pruned = subject.pruned(mask)
        for name, gradient in parameter_gradients(pruned, subject.example).items():
            if gradient is None and before.get(name) is not None:
                raise VerificationError(f"{name} gets no gradient after pruning, and is not frozen")


def _trainable(model: Any, subject: CheckedModel) -> bool:
    """Whether the unpruned model trains so."""
    try:
        _backward(model, subject)
    except Exception:
        return False
    return _reached_by_gradients(model, subject)


def _reached_by_gradients(model: nn.Module, subject: CheckedModel) -> bool:
    outputs = [projection_at(model, site.output) for site in find_heads(model, subject.example)]
    grads = [projections.parameter(output).grad for output in outputs]
    return any(grad is not None and bool(grad.abs().sum() > 0) for grad in grads)


def _backward(model: Any, subject: CheckedModel) -> None:
    model.train()
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable()
    torch.manual_seed(0)
    output = model(**subject.example)
    values = output.to_tuple() if hasattr(output, "to_tuple") else (output,)
    terms = [x.float().square().mean() for x in values if isinstance(x, Tensor) and x.requires_grad]
    torch.stack(terms).sum().backward()


def _round_trip(subject: CheckedModel, mask: HeadMask) -> tuple[nn.Module, nn.Module]:
    lost = _lost_by_transformers(subject)
    pruned: Any = subject.pruned(mask)
    expected = subject.answer(pruned)
    with tempfile.TemporaryDirectory() as folder:
        pruned.save_pretrained(folder)
        loaded = _load(type(subject.model), folder)
    _same_weights(loaded, pruned, lost)
    _put_back(loaded, pruned, lost)
    check_same(subject.answer(loaded), expected, "saved and loaded")
    with tempfile.TemporaryDirectory() as folder:
        loaded.save_pretrained(folder)
        again = _load(type(subject.model), folder)
    _same_weights(again, pruned, lost)
    _put_back(again, pruned, lost)
    check_same(subject.answer(again), expected, "saved and loaded twice")
    return pruned, loaded


def _same_weights(loaded: nn.Module, saved: nn.Module, lost: set[str]) -> None:
    """Bit for bit. (Answers of the same weights may differ in the last bit: kernels look at where memory begins.)"""
    changed = _changed(loaded, saved) - lost
    if changed:
        raise VerificationError(f"{min(changed)} is not loaded as it was saved")


def _changed(loaded: nn.Module, saved: nn.Module) -> set[str]:
    mine, theirs = loaded.state_dict(), saved.state_dict()
    both = mine.keys() & theirs.keys()
    return (mine.keys() ^ theirs.keys()) | {name for name in both if not torch.equal(mine[name], theirs[name])}


def _lost_by_transformers(subject: CheckedModel) -> set[str]:
    """Weights that do not survive saving and loading the unpruned model (parts that its class does not use)."""
    whole: Any = subject.model
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole.save_pretrained(folder)
            return _changed(_load(type(whole), folder), whole)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise Refused(f"transformers itself cannot load the unpruned model that it saved ({told})") from error


def _put_back(loaded: nn.Module, original: nn.Module, lost: set[str]) -> None:
    """What transformers loses, so that the rest can be compared."""
    theirs, ours = loaded.state_dict(), original.state_dict()
    for name in lost & theirs.keys() & ours.keys():
        if theirs[name].shape == ours[name].shape:
            theirs[name].copy_(ours[name])


def _load(cls: Any, folder: str) -> Any:
    return cls.from_pretrained(folder, dtype=torch.float32).eval()
