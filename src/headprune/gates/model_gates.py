"""The gates of a model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from headprune.checkpoint import config_entry
from headprune.checkpoint.config_entry import GATES_ENTRY, GATES_VERSION
from headprune.errors import GateError
from headprune.gates.distributions import ExactK, Gate, Rule
from headprune.gates.placement import fold, take_off
from headprune.heads import HeadId, HeadMask, Site, canonical_component
from headprune.hooks import gate_projections_
from headprune.structure.find import find_heads
from headprune.structure.projections import matrix, why_not_sliceable
from headprune.surgery.prune import prune_

DECIDED = 6.0  # a log_alpha at which a gate is open in 99.9 % of its samples


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
        if self._joint() is not None:
            return self.final()[site]
        return self._for_heads(site, self.gate(site).final(self.rule))  # of this site alone: every site asks

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
        self.note()
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
        weights = {site: matrix(output).clone() for site, output in outputs.items()}
        if keep is not None:
            self.decide_(keep)
        mask, values = self.mask(rule=rule), self.final(rule)
        closed = {site: self._closed(site, mask) for site in self.places}
        take_off(model)
        try:
            for site, value in values.items():
                gone = torch.ones_like(value) if prune else torch.zeros_like(value)  # what is removed needs no folding
                fold(outputs[site], torch.where(closed[site], gone, value))
            if prune:
                prune_(model, mask, **how)
        except BaseException:
            for site, output in outputs.items():
                matrix(output).copy_(weights[site])
            self.load_state_dict(before[0])
            self._set_joint_keep(before[1])
            self.put_on(model, {site: place.site.output for site, place in self.places.items()})
            self.note()
            raise
        self._owner = ()
        return model

    @property
    def model(self) -> nn.Module:
        if not self._owner:
            raise GateError("These gates are not attached to a model.")
        return self._owner[0]

    # Putting them on a model.

    def put_on(self, model: nn.Module, outputs: Mapping[str, str]) -> None:
        """Become a submodule of the base model, where every class of the model finds it, and hook in there: `outputs`
        are the output projections of the sites."""
        prefix = config_entry.base_prefix(model)
        base = model.get_submodule(prefix[:-1])
        base.add_module(GATES_ENTRY, self)
        self._owner = (model,)
        self.train(model.training)
        gate_projections_(base, self, {site: path.removeprefix(prefix) for site, path in outputs.items()})

    def note(self) -> None:
        """What a checkpoint says about the gates."""
        config = getattr(self.model, "config", None)
        if config is None:
            return
        first = next(iter(self.by_site.values()))
        assert isinstance(first, Gate), "by_site holds gates"
        sites = [
            {**config_entry.site_entry(self.model, place.site), "gate_of_head": list(place.gate_of_head)}
            for place in self.places.values()
        ]
        entry = {"version": GATES_VERSION, "kind": first.kind, "options": first.options(), "rule": self.rule,
                 "seed": self.seed, "sync_noise": self.sync_noise, "frozen": self.frozen, "sites": sites}  # fmt: skip
        config_entry.write(self.model, entry, GATES_ENTRY)

    # Inside.

    def _closed(self, site: str, mask: HeadMask) -> Tensor:
        kept = mask.kept(site)
        device = self.gate(site).log_alpha.device
        return torch.tensor([head not in kept for head in self.places[site].site.kept], device=device)

    def _prob_open(self) -> dict[str, Tensor]:
        if self._joint() is None:
            return {site: self.gate(site).prob_open() for site in self.places}
        return self._together(lambda gate, site: gate._logits(), ExactK.soft)

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

    def _together(
        self, scores: Callable[[ExactK, str], Tensor], choose: Callable[[ExactK, Tensor, int], Tensor]
    ) -> dict[str, Tensor]:
        """One choice among the gates of all sites."""
        first = self._joint()
        assert first is not None, "only joint gates are drawn together"
        joint = {site: gate for site in self.places if isinstance(gate := self.gate(site), ExactK)}
        parts = {site: scores(gate, site) for site, gate in joint.items()}
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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Gates:
        """Gates stay in float32 when the model is cast: in bf16, a step of 0.01 from 2.0 would be no step."""
        before = [tensor.detach().clone() for tensor in (*self.parameters(), self.multiplier)]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for tensor, value in zip((*self.parameters(), self.multiplier), before, strict=True):
            if tensor.dtype != torch.float32 and not tensor.is_meta and not value.is_meta:
                tensor.data = value.to(tensor.device, torch.float32)
        return self

    def __getstate__(self) -> dict[str, object]:
        """A copy draws for itself: what was drawn belongs to the graph of another forward pass."""
        return {**self.__dict__, "_now": {}}
