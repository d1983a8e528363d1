"""`attach_gates`: trainable gates on the heads of any model that can be masked."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from headprune.errors import GateError
from headprune.gates.distributions import ExactK, Gate, Rule, gates, make_gate
from headprune.heads import HeadId, HeadMap, HeadMask, Site, canonical_component
from headprune.hooks import gate_projections_, is_gated, ungate_projections_
from headprune.sites import record
from headprune.sites.find import find_heads, remember, unwrapped
from headprune.sites.projections import layout, why_not_sliceable
from headprune.surgery.prune import prune_

ENTRY = "headprune_gates"  # in the config, and the name of the submodule
VERSION = 1
DECIDED = 6.0  # a log_alpha at which a gate is open in 99.9 % of its samples
GateFactory = Callable[[int], Gate]
Unit = Literal["auto", "head", "group"]


@dataclass(frozen=True)
class GatedSite:
    """A site and which gate each of its current heads obeys (its own, or its KV group's)."""

    site: Site
    gate_of_head: tuple[int, ...]

    @property
    def key(self) -> str:
        return self.site.id.replace(".", "__").replace("#", "--")  # names of submodules have no dots

    @property
    def num_gates(self) -> int:
        return max(self.gate_of_head) + 1


class Gates(nn.Module):
    """The gates of a model: a submodule of it (of its base model), so that they train, move and save with it."""

    def __init__(
        self,
        places: Sequence[GatedSite],
        made: Sequence[Gate],
        *,
        rule: Rule = "paper",
        seed: int = 0,
        sync_noise: bool = False,
    ) -> None:
        super().__init__()
        self.places = {place.site.id: place for place in places}
        self.by_site = nn.ModuleDict({place.key: gate for place, gate in zip(places, made, strict=True)})
        self.register_buffer("multiplier", torch.zeros(1))  # of a target's Lagrangian; saved, so that training resumes
        self.multiplier: Tensor
        self.rule, self.seed, self.sync_noise, self.frozen = rule, seed, sync_noise, False
        self.step, self._draws = 0, 0  # the noise of a draw depends on these, the seed and the rank alone
        self._now: dict[str, Tensor] = {}
        self._owner: tuple[nn.Module, ...] = ()  # a tuple, so that the model does not become a submodule of its gates

    def gate(self, site: str) -> Gate:
        found = self.by_site[self.places[site].key]
        assert isinstance(found, Gate), "by_site holds gates"
        return found

    def __len__(self) -> int:
        """The number of gated heads."""
        return sum(len(place.gate_of_head) for place in self.places.values())

    # What the hooks ask.

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # noise is made by numbers that compiled code cannot follow
    def draw(self) -> None:
        """One sample per gate, which holds until the next forward pass of the model begins."""
        self._now = {}
        if not self.training or self.frozen:
            return
        generator = torch.Generator().manual_seed(self._noise_seed())
        self._draws += 1
        noises = {site: torch.rand(self.gate(site).num_heads, generator=generator) for site in self.places}
        if self._joint() is not None:
            drawn = self._together(lambda gate, site: gate.noisy(noises[site]), ExactK.relaxed)
        else:
            drawn = {site: self.gate(site).sample(noise) for site, noise in noises.items()}
        self._now = {site: self._for_heads(site, value) for site, value in drawn.items()}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def value(self, site: str) -> Tensor:
        """What each current head of a site is multiplied by now."""
        if self.training and not self.frozen:
            if not self._now:
                self.draw()
            return self._now[site]
        return self.final()[site]

    def at(self, step: int) -> None:
        """Tell the gates the training step, from which their noise follows: a resumed run draws what it would have."""
        self.step, self._draws = step, 0

    def final(self, rule: Rule | None = None) -> dict[str, Tensor]:
        """The values without noise: one per current head of each site."""
        if self._joint() is not None:
            values = self._together(lambda gate, site: gate._logits(), ExactK.opened)
        else:
            values = {site: self.gate(site).final(rule or self.rule) for site in self.places}
        return {site: self._for_heads(site, value) for site, value in values.items()}

    # What people ask.

    def mask(self, keep: int | None = None, rule: Rule | None = None) -> HeadMask:
        """The heads that stay: those whose gates end open, or exactly the `keep` likeliest (ungated heads stay)."""
        heads = find_heads(self.model)
        closed = self._closed_now(rule) if keep is None else self._all_but(keep)
        gone = [
            HeadId(site, place.site.kept[head])
            for site, place in self.places.items()
            for head in range(len(place.gate_of_head))
            if bool(closed[site][head])
        ]
        return HeadMask.full(heads).without(*gone)

    def penalty(self, over: Literal["sum", "site-mean"] = "sum", weights: Mapping[str, float] | None = None) -> Tensor:
        """The expected number of open heads: summed (the papers), or the mean over sites (Voita et al.'s code).

        `weights` multiply the heads of a component (`{"encoder": 1.0, "cross": 0.5}`; others count 1).
        """
        if over not in ("sum", "site-mean"):
            raise GateError(f"over is {over!r}; expected 'sum' or 'site-mean'.")
        wanted = {canonical_component(name): value for name, value in (weights or {}).items()}
        parts = [
            wanted.get(place.site.component, 1.0) * self._heads_per_gate(site) * self.gate(site).penalty()
            for site, place in self.places.items()
        ]
        total = torch.stack(parts).sum()
        return total if over == "sum" else total / len(parts)

    def open_heads(self) -> dict[str, int]:
        """How many heads of each site are open as things stand."""
        return {site: int((value > 0).sum()) for site, value in self.final().items()}

    def open_by_component(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for site, count in self.open_heads().items():
            name = self.places[site].site.component
            counts[name] = counts.get(name, 0) + count
        return counts

    def probabilities(self) -> dict[str, list[float]]:
        """P(open) of every gate."""
        return {site: value.detach().tolist() for site, value in self._prob_open().items()}

    def expected_heads(self) -> float:
        """How many heads are open on average: what the penalty of a sum counts."""
        if self._joint() is None:
            return float(self.penalty().detach())
        return sum(
            float(value.detach().sum()) * self._heads_per_gate(site) for site, value in self._prob_open().items()
        )

    def share_decided(self, level: float = 0.9) -> float:
        """The share of gates with max(P(0), P(1)) above the level."""
        if self._joint() is not None:
            sure = [torch.maximum(value, 1 - value) > level for value in self._prob_open().values()]
        else:
            sure = [self.gate(site).decided(level) for site in self.places]
        return float(torch.cat(sure).float().mean())

    def decide_(self, keep: int) -> Gates:
        """Open exactly the `keep` likeliest heads for good, and close the others."""
        chosen = self._all_but(keep)
        if self._joint() is not None:
            self._set_joint_keep(keep)
        for site, closed in chosen.items():
            gate, place = self.gate(site), self.places[site]
            shut = torch.zeros(gate.num_heads, dtype=torch.bool, device=closed.device)
            shut[list(place.gate_of_head)] = closed
            with torch.no_grad():
                alpha = gate.log_alpha
                alpha.copy_(torch.where(shut, alpha.clamp(max=-DECIDED), alpha.clamp(min=DECIDED)))
        self._now = {}
        return self

    def freeze_(self) -> Gates:
        """From now on the final values, no noise, no penalty, no training of gates (Shim et al.: gate freezing)."""
        self.frozen = True
        self._now = {}
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None  # or momentum would move it once more
        self._note()
        return self

    def remove_(
        self, *, keep: int | None = None, rule: Rule | None = None, prune: bool = True, **how: Any
    ) -> nn.Module:
        """Take the gates off, remove the heads that they closed, fold what is left of their values into the weights.

        With `keep`, exactly so many of the gated heads stay. `prune=False` leaves closed heads in place (their gates
        are folded in as zeros). Further options are those of `prune_`. Warns if gates are undecided. If the heads
        cannot be removed, the gates stay on, and nothing is changed.
        """
        model = self.model
        undecided = 1 - self.share_decided()
        if undecided > 0 and self._joint() is None and not self.frozen:
            warnings.warn(
                f"{undecided:.0%} of the gates are undecided (neither P(0) nor P(1) is above 0.9): the pruned model "
                "may do worse than the gated one did in training. Train longer, or with a lower temperature.",
                stacklevel=2,
            )
        outputs = {site: model.get_submodule(place.site.output) for site, place in self.places.items()}
        for site, output in outputs.items():
            problem = why_not_sliceable(output)
            if problem is not None:
                raise GateError(f"The gates of {site} cannot be folded into its output projection: {problem}")
        before = copy.deepcopy(self.state_dict()), self._joint_keep()
        weights = {site: output.weight.detach().clone() for site, output in outputs.items()}  # type: ignore[operator]
        if keep is not None:
            self.decide_(keep)
        mask, values = self.mask(rule=rule), self.final(rule)
        closed = {site: self._closed(site, mask) for site in self.places}
        _take_off(model)
        try:
            for site, value in values.items():
                gone = torch.ones_like(value) if prune else torch.zeros_like(value)  # what is removed needs no folding
                _fold(outputs[site], torch.where(closed[site], gone, value))
            if prune:
                prune_(model, mask, **how)
        except BaseException:
            for site, output in outputs.items():
                output.weight.data.copy_(weights[site])  # type: ignore[operator]
            self.load_state_dict(before[0])
            self._set_joint_keep(before[1])
            put_on(model, self, {site: place.site.output for site, place in self.places.items()})
            self._note()
            raise
        self._owner = ()
        return model

    @property
    def model(self) -> nn.Module:
        if not self._owner:
            raise GateError("These gates are not attached to a model.")
        return self._owner[0]

    # Inside.

    def _closed(self, site: str, mask: HeadMask) -> Tensor:
        kept = mask.kept(site)
        device = self.gate(site).log_alpha.device
        return torch.tensor([head not in kept for head in self.places[site].site.kept], device=device)

    def _prob_open(self) -> dict[str, Tensor]:
        if self._joint() is None:
            return {site: self.gate(site).prob_open() for site in self.places}
        found: dict[str, Tensor] = self._together(lambda gate, site: gate._logits(), ExactK.soft)
        return found

    def _closed_now(self, rule: Rule | None) -> dict[str, Tensor]:
        return {site: value == 0 for site, value in self.final(rule).items()}

    def _joint(self) -> ExactK | None:
        first = next(iter(self.by_site.values()))
        return first if isinstance(first, ExactK) else None

    def _joint_keep(self) -> int | None:
        first = self._joint()
        return None if first is None else first.keep

    def _set_joint_keep(self, keep: int | None) -> None:
        for gate in self.by_site.values():
            if isinstance(gate, ExactK):
                gate.keep = keep

    def _together(self, scores: Callable[[Any, str], Tensor], choose: Callable[[ExactK, Tensor, int], Tensor]) -> Any:
        """One choice among the gates of all sites."""
        first = self._joint()
        assert first is not None, "only joint gates are drawn together"
        parts = {site: scores(self.gate(site), site) for site in self.places}
        size = self._heads_per_gate(next(iter(self.places)))  # the same everywhere: `attach_gates` saw to it
        chosen = choose(first, torch.cat(list(parts.values())), round((first.keep or 0) / size))
        return dict(zip(parts, chosen.split([len(part) for part in parts.values()]), strict=True))

    def _for_heads(self, site: str, value: Tensor) -> Tensor:
        place = self.places[site]
        if len(place.gate_of_head) == len(value):
            return value
        return value[list(place.gate_of_head)]

    def _heads_per_gate(self, site: str) -> float:
        place = self.places[site]
        return len(place.gate_of_head) / place.num_gates

    def _all_but(self, keep: int) -> dict[str, Tensor]:
        """True for every head but the `keep` ones whose gates have the largest log_alpha."""
        if not 0 <= keep <= len(self):
            raise GateError(f"keep is {keep}; there are {len(self)} gated heads.")
        gates = [(site, gate) for site in self.places for gate in range(self.places[site].num_gates)]
        alphas = torch.cat([self.gate(site)._logits().detach() for site in self.places])
        left, opened = keep, set()
        for place in torch.argsort(alphas, descending=True, stable=True).tolist():
            size = self.places[gates[place][0]].gate_of_head.count(gates[place][1])
            if size <= left:
                opened.add(gates[place])
                left -= size
        if left:
            raise GateError(
                f"keep is {keep}, but gates open whole groups of heads: the nearest below is {keep - left}."
            )
        device = alphas.device
        return {
            site: torch.tensor([(site, gate) not in opened for gate in place.gate_of_head], device=device)
            for site, place in self.places.items()
        }

    def _noise_seed(self) -> int:
        rank = 0
        if not self.sync_noise and torch.distributed.is_available() and torch.distributed.is_initialized():
            rank = torch.distributed.get_rank()
        return int(
            np.random.SeedSequence([self.seed, rank, self.step, self._draws]).generate_state(1, np.uint64)[0] >> 1
        )

    def _note(self) -> None:
        """What a checkpoint says about the gates."""
        config = getattr(self.model, "config", None)
        if config is None:
            return
        first = next(iter(self.by_site.values()))
        assert isinstance(first, Gate), "by_site holds gates"
        sites = [
            {**site_entry(self.model, place.site), "gate_of_head": list(place.gate_of_head)}
            for place in self.places.values()
        ]
        entry = {"version": VERSION, "kind": first.kind, "options": first.options(), "rule": self.rule,
                 "seed": self.seed, "sync_noise": self.sync_noise, "frozen": self.frozen, "sites": sites}  # fmt: skip
        record.write(self.model, entry, ENTRY)

    def _apply(self, fn: Any, recurse: bool = True) -> Gates:
        """Gates stay in float32 when the model is cast: in bf16, a step of 0.01 from 2.0 would be no step."""
        before = [tensor.detach().clone() for tensor in (*self.parameters(), self.multiplier)]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for tensor, value in zip((*self.parameters(), self.multiplier), before, strict=True):
            if tensor.dtype != torch.float32 and not tensor.is_meta and not value.is_meta:
                tensor.data = value.to(tensor.device, torch.float32)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """A copy draws for itself: what was drawn belongs to the graph of another forward pass."""
        return {**self.__dict__, "_now": {}}


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
    example: Mapping[str, Any] | None = None,
    **options: Any,
) -> Gates:
    """Put a trainable gate before every head's share of the output projection.

    `gate` is a name ("hard-concrete", "binary-concrete", "exact-k"), a class or a function `num_heads -> gate`;
    `options` go to the gate (`temperature=…, init=…`). `components` or `sites` choose where. Heads that share keys
    and values get one gate for their group (`unit="auto"`), so that they can be pruned by what it says; `unit="head"`
    gives each its own, which may have to be removed with `gqa="expand"`.

    In training mode every forward pass of the model draws one sample per gate; in evaluation mode gates have their
    final value, by `rule` ("paper" or "clip"). On several processes noise differs by rank unless `sync_noise`.
    The gates are a submodule, `headprune_gates`; the model saves and loads with them (`gates_of` finds them again).
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
    put_on(model, attached, {place.site.id: place.site.output for place in places})
    attached._note()
    remember(model, heads)
    return attached


def gates_of(model: nn.Module) -> Gates:
    """The gates of a model that has them, for example after loading it."""
    found = next((part for part in unwrapped(model).modules() if isinstance(part, Gates)), None)
    if found is None:
        raise GateError("The model has no gates. Put them on with attach_gates(model).")
    return found


def put_on(model: nn.Module, attached: Gates, outputs: Mapping[str, str]) -> None:
    """Make the gates a submodule of the base model, where every class of the model finds them, and hook them in."""
    prefix = record.base_prefix(model)
    base = model.get_submodule(prefix[:-1])
    base.add_module(ENTRY, attached)
    attached._owner = (model,)
    attached.train(model.training)
    gate_projections_(base, attached, {site: path.removeprefix(prefix) for site, path in outputs.items()})


def site_entry(model: nn.Module, site: Site) -> dict[str, Any]:
    """A site for the config, with paths as the base model sees them."""
    entry = HeadMap((site,)).to_dict()["sites"][0]
    paths = {name: record.stored_path(model, getattr(site, name)) for name in ("path", "output")}
    return {**entry, **paths}


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


def _factory(gate: str | type[Gate] | GateFactory, options: Mapping[str, Any]) -> GateFactory:
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


def _take_off(model: nn.Module) -> None:
    ungate_projections_(model)
    base = model.get_submodule(record.base_prefix(model)[:-1])
    delattr(base, ENTRY)
    if getattr(getattr(model, "config", None), ENTRY, None) is not None:
        delattr(model.config, ENTRY)


def _fold(output: nn.Module, value: Tensor) -> None:
    """Multiply each head's columns of an output projection; its bias stays."""
    shape = layout(output)
    assert shape is not None, "it was checked before the gates were taken off"
    weight: Tensor = output.weight  # type: ignore[assignment]
    wide = value.detach().to(weight.device, torch.float32).repeat_interleave(weight.shape[shape.in_dim] // len(value))
    with torch.no_grad():
        scale = wide if shape.in_dim == 1 else wide[:, None]
        weight.copy_((weight.float() * scale).to(weight.dtype))
