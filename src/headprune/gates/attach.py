"""`attach_gates`: trainable gates on the heads of any model that can be masked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

from torch import nn

from headprune.errors import GateError
from headprune.gates.distributions import ExactK, Gate, GateOptions, Rule, gates, make_gate
from headprune.gates.model_gates import GatedSite, Gates
from headprune.heads import HeadMap, Site, canonical_component
from headprune.hooks import is_gated
from headprune.structure.find import find_heads, remember
from headprune.structure.run import unwrapped
from headprune.types import Batch

GateFactory = Callable[[int], Gate]
Unit = Literal["auto", "head", "group"]


def attach_gates(
    model: nn.Module,
    gate: str | type[Gate] | GateFactory = "hard-concrete",
    *,
    components: Sequence[str] | None = None,
    sites: Sequence[str] | None = None,
    unit: Unit = "auto",
    rule: Rule = "paper",
    seed: int = 0,
    sync_noise: bool = False,
    example: Batch | None = None,
    **options: object,
) -> Gates:
    """Put a trainable gate before every head's share of the output projection.

    `gate` is a name ("hard-concrete", "binary-concrete", "exact-k"), a class or a function `num_heads -> gate`;
    `options` go to the gate (`temperature=…, init=…`). `components` or `sites` choose where. Heads that share keys
    and values get one gate for their group (`unit="auto"`), so that they can be pruned by what it says; `unit="head"`
    gives each its own, which may have to be removed with `gqa="expand"`.

    In training mode every forward pass of the model draws one sample per gate; in evaluation mode gates have their
    final value, by `rule` ("paper" or "clip"). On several processes noise differs by rank unless `sync_noise`.
    The gates are a submodule, `headprune_gates`; the model saves and loads with them (`gates_of` finds them again).

    Example:
        >>> gates = hp.attach_gates(model, hp.HardConcrete)
        >>> loss = model(**batches[0]).loss + 0.02 * gates.penalty()  # train it; gates.remove_() prunes what closed
    """
    model = unwrapped(model)
    if is_gated(model):
        raise GateError("The model has gates already. Take them off first: gates_of(model).remove_().")
    heads = find_heads(model, example)
    places = _places(heads, components, sites, unit)
    factory = _factory(gate, options)
    made = [factory(place.num_gates) for place in places]
    for place, one in zip(places, made, strict=True):
        if not isinstance(one, Gate) or one.num_heads != place.num_gates:
            raise GateError(f"The gate for {place.site.id} must be a Gate of {place.num_gates} heads; found {one!r}.")
    if isinstance(made[0], ExactK):
        _check_joint(places, made)
    _check_saveable(made)
    attached = Gates(places, made, rule=rule, seed=seed, sync_noise=sync_noise)
    weight = next(model.parameters())
    attached.to(weight.device)
    attached.put_on(model, {place.site.id: place.site.output for place in places})
    attached.note()
    remember(model, heads)
    return attached


def gates_of(model: nn.Module) -> Gates:
    """The gates of a model that has them, for example after loading it.

    Example:
        >>> gates = hp.attach_gates(model, "binary-concrete")
        >>> hp.gates_of(model) is gates
        True
    """
    found = next((part for part in unwrapped(model).modules() if isinstance(part, Gates)), None)
    if found is None:
        raise GateError("The model has no gates. Put them on with attach_gates(model).")
    return found


def _places(
    heads: HeadMap, components: Sequence[str] | None, sites: Sequence[str] | None, unit: Unit
) -> list[GatedSite]:
    if unit not in ("auto", "head", "group"):
        raise GateError(f"unit is {unit!r}; expected 'auto', 'head' or 'group'.")
    wanted = None if components is None else {canonical_component(name) for name in components}
    for name in sites or ():
        heads[name]
    chosen = [
        site
        for site in heads
        if site.num_heads and (wanted is None or site.component in wanted) and (sites is None or site.id in sites)
    ]
    if not chosen:
        raise GateError(f"There are no heads to gate. The model has {', '.join(heads.components) or 'none'}.")
    return [GatedSite(site, _gate_of_head(site, unit)) for site in chosen]


def _gate_of_head(site: Site, unit: Unit) -> tuple[int, ...]:
    if unit == "head":
        return tuple(range(site.num_heads))
    group = {head: number for number, members in enumerate(site.groups) for head in members}
    return tuple(group[head] for head in site.kept)


def _factory(gate: str | type[Gate] | GateFactory, options: GateOptions) -> GateFactory:
    if isinstance(gate, str):
        gates[gate]
        name = gate
        return lambda count: make_gate(name, count, options)
    if isinstance(gate, type) and issubclass(gate, Gate):
        cls = gate
        return lambda count: cls(count, **options)
    if options:
        raise GateError("A function that makes gates takes no options here: put them into the function.")
    return cast(GateFactory, gate)


def _check_joint(places: Sequence[GatedSite], made: Sequence[Gate]) -> None:
    """One number of heads for all; and gates of one size, or a number of heads would not be a number of gates."""
    keeps = {one.keep for one in made if isinstance(one, ExactK)}
    sizes = {len(place.gate_of_head) / place.num_gates for place in places}
    total = sum(len(place.gate_of_head) for place in places)
    keep = next(iter(keeps)) if len(keeps) == 1 else None
    if keep is None or keep > total:
        raise GateError(
            f"Exact-k gates need one number of heads to keep, from 0 to {total}; found {keeps}. Pass keep=k."
        )
    size = next(iter(sizes))
    if len(sizes) > 1 or keep % size:
        raise GateError(
            f"keep is {keep}, but gates open groups of {sorted(sizes)} heads: choose a multiple of one size."
        )


def _check_saveable(made: Sequence[Gate]) -> None:
    """A checkpoint notes one kind and one set of options for all gates."""
    first = made[0]
    if any(type(one) is not type(first) or one.options() != first.options() for one in made):
        raise GateError("Gates of different kinds or options in one model could not be loaded again. Make them alike.")
    if gates.find(first.kind) is not type(first):
        raise GateError(
            f"{type(first).__name__} could not be loaded again: give it a `kind` and register it with "
            "`@headprune.gates.gates.add(kind)`."
        )
