"""`stream`: score, prune and repair a checkpoint on disk, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from headprune.checkpoint.out_folder import check_companions, check_room, new_model_folder
from headprune.checkpoint.pretrained import loading_words, model_card
from headprune.checkpoint.shards import Entry, write_index, write_shard
from headprune.errors import DataError, MaskError, UnsupportedModelError
from headprune.files import write_text
from headprune.heads import HeadMap, HeadMask, HeadScores
from headprune.heads.mask import Unit
from headprune.hooks import NotAStackError
from headprune.memory import check_memory
from headprune.on_disk.progress import StreamProgress
from headprune.on_disk.skeleton import Skeleton, key_of, names_in, tensor_at
from headprune.recovery.recover import SiteFits
from headprune.recovery.sequential import SequentialMoments, recoveries
from headprune.recovery.walks import held_batches, part_of
from headprune.scoring.context import ExampleLoss, ScoringContext, evaluation
from headprune.scoring.layerwise import LayerStates
from headprune.scoring.run import scorers, unit_options
from headprune.surgery import plan_edits
from headprune.surgery.apply import apply_, selected
from headprune.surgery.edits import Cut, Edits, Gqa, cut_site
from headprune.surgery.neurons import neuron_edits
from headprune.surgery.prune import heads_after, write_record
from headprune.surgery.remove import Way, edits_by, remove_heads, remove_neurons
from headprune.types import Batch

WITHOUT_BACKWARD = ("reconstruction", "output-norm")


def stream(folder: str | Path, *, trust_remote_code: bool = False) -> Streamed:
    """A checkpoint on disk as something to score, prune and repair, one layer in memory at a time.

    For decoder-only models (any stack of layers) whose weights are in safetensors. `heads` is what `find_heads` would
    find with `neurons=True`; of each kind of layer, one is run on a small example.

    Example:
        >>> model.save_pretrained("whole")
        >>> streamed = hp.stream("whole")
        >>> mask = hp.select(streamed.score(batches, method="reconstruction"), prune=0.5)
        >>> after = streamed.prune(mask, "smaller", data=batches, recover="least-squares")
        >>> len(streamed.heads.attention), len(after.attention)
        (8, 4)
    """
    return Streamed(Skeleton.of(Path(folder), trust_remote_code=trust_remote_code))


class Streamed:
    """See `stream`."""

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton

    @property
    def heads(self) -> HeadMap:
        return self.skeleton.structure.heads

    def score(
        self,
        data: Sequence[Batch],
        *,
        method: str = "reconstruction",
        unit: Unit = "head",
        parts: Literal["heads", "neurons", "both"] = "heads",
        tell: Callable[[str], None] = lambda what: None,
    ) -> HeadScores:
        """What heads are worth, by a score that needs no backward pass. Cost: about two forward passes."""
        if method not in WITHOUT_BACKWARD:
            scorers[method]  # a hint for a wrong name
            raise MaskError(
                f"'{method}' needs the whole model in memory. Streamed are {', '.join(WITHOUT_BACKWARD)}: choose one, "
                "or load the model (without --stream)."
            )
        chosen = self.heads.attention if parts == "heads" else self.heads.neurons if parts == "neurons" else self.heads
        found: list[HeadScores] = []
        for states in walked(self.skeleton, data, chosen):
            tell(states.path)
            context = states.layer_context()
            if context.heads:
                with torch.inference_mode(False), evaluation(context.model):
                    found.append(scorers[method](context, **unit_options(method, unit)))
            if states.place < len(states.paths) - 1:
                states.advance()
        return joined(found, chosen)

    def prune(
        self,
        mask: HeadMask,
        out: str | Path,
        *,
        data: Sequence[Batch] | None = None,
        recover: str | None = None,
        gqa: Gqa | None = None,
        about: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = lambda what: None,
    ) -> HeadMap:
        """Write the model without the heads that `mask` does not keep; what is left is repaired on `data` by a method
        of `recover_`. Without a repair, tensors go from file to file and no text is needed. Started again after an
        interruption, it goes on where it was."""
        mask = mask.filled(self.heads).checked_for(self.heads)
        if recover is not None and getattr(recoveries[recover], "looks_at_stream", False):
            raise MaskError(f"'{recover}' is not streamed. Use least-squares, bias or rescale.")
        if (recover is None) != (data is None):
            raise DataError("A repair needs data, and data a repair: give both or none.")
        target = Path(out)
        check_companions(self.skeleton.folder)
        check_room(target, sum(map(self.skeleton.shards.size, self.skeleton.shards.place)), "the smaller model")
        work = _Pruning(self.skeleton, mask, gqa, target)
        if recover is None:
            work.slice(tell)
        else:
            work.repair(list(data or ()), recover, tell)
            about = {**(about or {}), "recovered": recover}
        return work.finish(dict(about or {}))


def walked(skeleton: Skeleton, data: Sequence[Batch], heads: HeadMap) -> Iterator[LayerStates]:
    """The data before each layer, whose weights are there until the next is asked for."""
    skeleton.check_runs()
    states = states_before(skeleton, data, heads)
    while states.place < len(states.paths):
        place = states.place
        with skeleton.filled(states.paths[place], copied=True):
            yield states
        if states.place == place:
            return


def states_before(skeleton: Skeleton, data: Sequence[Batch], heads: HeadMap) -> LayerStates:
    if not data:
        raise DataError("The calibration data has no batch.")
    check_memory(
        skeleton.largest_layer(),
        "One layer of the model",
        "Give it more memory: less than a layer cannot be worked on.",
    )
    context = ScoringContext(model=skeleton.model, heads=heads, batches=data, loss=ExampleLoss("mean"))
    try:
        return LayerStates.before_first(context, data)
    except NotAStackError as error:
        raise UnsupportedModelError(
            f"{type(skeleton.model).__name__} cannot be streamed: {error}. Load it as a whole (without --stream)."
        ) from error


def joined(parts: Sequence[HeadScores], heads: HeadMap) -> HeadScores:
    """Scores of the sites of all layers as one."""
    if not parts:
        raise DataError("No layer has heads to score.")

    def table(name: str) -> dict[str, Any]:
        known = {site: value for part in parts for site, value in getattr(part, name).items()}
        return {site.id: known[site.id] for site in heads}

    return dataclasses.replace(parts[0], sums=table("sums"), squares=table("squares"), counts=table("counts"))


@dataclass
class _Pruning:
    """One checkpoint on its way to a smaller one."""

    skeleton: Skeleton
    mask: HeadMask
    gqa: Gqa | None
    target: Path

    def __post_init__(self) -> None:
        losing = [site for site in self.skeleton.structure.heads if self.mask.kept(site.id) != site.kept]
        self.cuts = {site.id: cut_site(site, self.mask.kept(site.id), self.gqa) for site in losing}
        self.edits = Edits()
        self.files: dict[str, list[str]] = {}
        self.total = 0
        self.ways: dict[tuple[object, ...], Way] = {}

    def cuts_in(self, path: str) -> list[Cut]:
        return [cut for cut in self.cuts.values() if f"{cut.site.output}.".startswith(f"{path}.")]

    def cut_(self, model: nn.Module, cut: Cut) -> None:
        """Remove in the layer at hand, and compare it with itself."""
        structure = self.skeleton.structure
        if cut.site.is_neurons:
            edits, _ = remove_neurons(model, structure.feed_forward[cut.site.id], cut, "bias")
            self.ways[self._kind(cut)] = Way(0, ())
        else:
            edits, _, way = remove_heads(model, structure.blocks[cut.site.id], cut, "bias")
            self.ways[self._kind(cut)] = way
        self.edits = self.edits.then(edits)

    def _kind(self, cut: Cut) -> tuple[object, ...]:
        equal = self.skeleton.equal
        return equal.in_first(cut.site.output), len(cut.kept), len(cut.groups), cut.expand

    # A mask alone: tensors go from file to file.

    def slice(self, tell: Callable[[str], None]) -> None:
        """Edits first: one layer of each kind of cut is run on the small example; then file by file."""
        skeleton = self.skeleton
        shapes = {key: skeleton.shards.shape(key) for key in skeleton.shards.place}
        original = {
            name: key for name in skeleton.model.state_dict() if (key := key_of(skeleton.model, name, skeleton.shards))
        }
        for path in skeleton.equal.paths:
            cuts = self.cuts_in(path)
            is_known = all(self._kind(cut) in self.ways for cut in cuts)
            skeleton.fill_(path, by_chance=True)
            if not is_known:
                for cut in cuts:
                    self.cut_(skeleton.model, cut)
                skeleton.empty_(path)
                continue
            edits = [self._known_edits(cut) for cut in cuts]
            skeleton.empty_(path)  # nothing is read here: only the shapes are cut
            for more in edits:
                apply_(skeleton.model, more)
                self.edits = self.edits.then(more)
        left = {original[name]: name for name in skeleton.model.state_dict() if name in original}
        gone = {original[name] for name in original} - set(left)
        by_file = skeleton.shards.keys_by_file()
        progress = StreamProgress(self.target, {"mask": self.mask.to_dict(), "gqa": self.gqa}, skeleton.folder)
        for file, keys in by_file.items():
            tell(file)
            entries = [self._entry(key, left.get(key), shapes[key]) for key in keys if key not in gone]
            self.files[file] = [entry.name for entry in entries]
            self.total += sum(entry.size for entry in entries)
            if not progress.has(file):
                write_shard(progress.folder / file, entries)
        self.folder = progress.folder

    def _known_edits(self, cut: Cut) -> Edits:
        """Of a cut of a kind that was compared before."""
        model, structure = self.skeleton.model, self.skeleton.structure
        if cut.site.is_neurons:
            return neuron_edits(model, structure.feed_forward[cut.site.id], cut, skip_bias=False)
        block = structure.blocks[cut.site.id]
        base = plan_edits.site_edits(model, block, cut, skip_bias=False)
        return edits_by(self.ways[self._kind(cut)], base, model, block, cut)

    def _entry(self, key: str, name: str | None, shape: tuple[int, ...]) -> Entry:
        shards = self.skeleton.shards
        path, _, last = (name or "").rpartition(".")
        cut = self.edits.slices.get(path, {}).get(last)
        if cut is None:
            return Entry(key, shards.dtype(key), shape, lambda: shards.tensor(key))
        smaller = tuple(len(cut.keep) if dim == cut.dim else size for dim, size in enumerate(shape))
        return Entry(key, shards.dtype(key), smaller, lambda: selected(shards.tensor(key), cut))

    # With a repair: layer by layer.

    def repair(self, data: list[Batch], method: str, tell: Callable[[str], None]) -> None:
        skeleton = self.skeleton
        skeleton.check_runs()
        asked = {"mask": self.mask.to_dict(), "gqa": self.gqa, "recover": method}
        progress = StreamProgress(self.target, asked, skeleton.folder, data)
        self.folder = progress.folder
        states = states_before(skeleton, data, skeleton.structure.heads)
        count = len(states.paths)
        names = [f"model-{number:05d}-of-{count + 1:05d}.safetensors" for number in range(1, count + 2)]
        in_layers: set[str] = set()
        for path in states.paths:
            in_layers.update(_stored_names(skeleton, path))
        for place, path in enumerate(states.paths):
            done = progress.layer(names[place])
            if done is not None:  # before the run was stopped
                apply_(skeleton.model, done.edits)
                self.edits = self.edits.then(done.edits)
                self.files[names[place]], self.total = done.keys, self.total + done.size
                states.place += 1
                if progress.is_last(names[place]):
                    states.states = progress.states()
                continue
            tell(path)
            self._repair_layer(states, path, method, names[place], progress)
        rest = [key for key in skeleton.shards.place if key not in in_layers]
        entries = [self._entry(key, None, skeleton.shards.shape(key)) for key in rest]
        if not progress.has(names[-1]):
            write_shard(progress.folder / names[-1], entries)
        self.files[names[-1]] = [entry.name for entry in entries]
        self.total += sum(entry.size for entry in entries)

    def _repair_layer(self, states: LayerStates, path: str, method: str, file: str, progress: StreamProgress) -> None:
        skeleton = self.skeleton
        before = self.edits
        self.edits = Edits()
        skeleton.fill_(path, copied=True)
        try:
            context = states.layer_context()
            cuts = self.cuts_in(path)
            with torch.inference_mode(False), evaluation(context.model):
                fits = SiteFits(self.mask, method, {})
                sites = [cut.site for cut in cuts]
                if sites:
                    walk = SequentialMoments(
                        context,
                        sites,
                        list(context.batches),
                        part_of(self.mask, context.heads),
                        held=held_batches(len(states.batches)) if fits.holds_out else (),
                    )
                    for site in walk.sites:
                        fits.fit_(walk, site)
                    states.advance(walk.answer)
                else:
                    states.advance()
                biases = {
                    context.heads[site].output: len(
                        context.model.get_submodule(context.heads[site].output).get_parameter("bias")
                    )
                    for site in fits.added
                }
                for cut in cuts:
                    self.cut_(context.model, cut)
            self.edits = self.edits.then(Edits(biases=biases))
            entries = [
                Entry(stored, tensor.dtype, tuple(tensor.shape), lambda tensor=tensor: tensor)  # type: ignore[misc]
                for stored, tensor in _stored(skeleton, path)
            ]
            write_shard(progress.folder / file, entries)
            keys, size = [entry.name for entry in entries], sum(entry.size for entry in entries)
            progress.note(file, self.edits, keys, size, states.states)
        finally:
            skeleton.empty_(path)
        self.files[file], self.total = keys, self.total + size
        self.edits = before.then(self.edits)

    def finish(self, about: dict[str, str]) -> HeadMap:
        """Config, index and companions; the files move in as one."""
        skeleton = self.skeleton
        before = skeleton.structure.heads
        after = heads_after(before, list(self.cuts.values()))
        write_record(skeleton.model, before, after, self.edits, about)
        with new_model_folder(self.target, skeleton.folder) as new:
            for file in self.files:
                (self.folder / file).replace(new / file)
            config: Any = skeleton.model.config
            config.save_pretrained(new)
            if len(self.files) > 1:
                write_index(new, self.files, self.total)
            card = new / "README.md"
            text = card.read_text(encoding="utf-8") if card.is_file() else ""
            write_text(card, model_card(config.headprune, text, loading_words(skeleton.model)))
        StreamProgress.clear(self.folder)
        return after


def _stored_names(skeleton: Skeleton, path: str) -> list[str]:
    return [key for name in names_in(skeleton.model, path) if (key := key_of(skeleton.model, name, skeleton.shards))]


def _stored(skeleton: Skeleton, path: str) -> list[tuple[str, torch.Tensor]]:
    """What a layer has to store now, under the names of the checkpoint."""
    found = []
    for name in names_in(skeleton.model, path):
        key = key_of(skeleton.model, name, skeleton.shards)
        if key is None:  # a bias that a repair gave: it is called as its weight
            weight = name.rpartition(".")[0] + ".weight"
            beside = key_of(skeleton.model, weight, skeleton.shards)
            assert beside is not None, "only biases are new"
            key = beside.rpartition(".")[0] + ".bias"
        found.append((key, tensor_at(skeleton.model, name)))
    return found
