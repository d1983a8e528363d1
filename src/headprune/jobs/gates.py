"""`gates`: let training decide which heads stay."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headprune.checkpoint.out_folder import check_companions, new_model_folder, open_out
from headprune.errors import FileFormatError, GateError, HeadpruneError
from headprune.files import bounded_text, loads, write_text
from headprune.gates import Gates, Objective, attach_gates, gates_of
from headprune.gates.trainer import choose_trainable_, read_trajectory
from headprune.heads import HeadMap, HeadMask, canonical_component, heads_to_prune
from headprune.jobs.gated import GatedModel, GatesResult, GateStep, draw_gates, open_by_pairs
from headprune.jobs.job import SILENT, Progress
from headprune.jobs.options.base import amount
from headprune.jobs.options.gates import GatesOptions
from headprune.structure.find import find_heads
from headprune.tasks import evaluate
from headprune.tasks.data import TaskData, open_new_task, open_task
from headprune.tasks.finetune import Gating, finetune
from headprune.tasks.new_model import new_model
from headprune.tasks.processes import process_count
from headprune.tasks.recipe import Recipe
from headprune.typed_json import from_plain, to_plain

# Where results go and what they look like: no part of what is trained.
_NOT_TRAINED = ("model", "data", "training", "out", "force", "weights", "keep", "picture", "device")


@dataclass(frozen=True)
class _Setting:
    """How much is to be pruned: a weight of the penalty, or a number or share of heads to keep."""

    by: str
    value: float | int

    def __str__(self) -> str:
        return f"{self.by}-{self.value}"  # 0.5 and 1.0 are shares, 1 is a count


def gates(options: GatesOptions, progress: Progress = SILENT) -> GatesResult:
    """Train gates on the heads of a converged model, prune what they close, and save it. Runs resume."""
    open_out("gates", options)
    check_companions(Path(options.model))
    settings = [_Setting("lambda", weight) for weight in options.weights or ()]
    settings += [_Setting("keep", amount(text)) for text in options.keep or ()]
    if not settings:
        raise GateError("Say how much to prune: --lambda 0.02 (the papers' way), or --keep 50% (finds its own lambda).")
    if process_count() > 1:
        raise GateError("This command trains on one process. For several, use hp.GateTrainer in a script of your own.")
    opened = (open_new_task if options.from_scratch else open_task)(options.data, options.model)
    found = []
    for setting in settings:
        asked, folder = _asked(options, setting), options.out / str(setting)
        known = finished(folder / "gates.json", asked, force=options.force)
        found.append(known or _trained(options, opened, setting, asked, progress))
    found.sort(key=lambda one: one.heads[1])
    result = GatesResult(tuple(found))
    write_text(options.out / "gates.json", json.dumps(result.to_dict(), indent=1))
    return GatesResult(result.models, tuple(draw_gates(found, options.out, options.picture)))


def _asked(options: GatesOptions, setting: _Setting) -> dict[str, Any]:
    """What decides the result, as it is stored beside it."""
    data = {name: None if value is None else str(value) for name, value in asdict(options.data).items()}
    data = {name: value for name, value in data.items() if value is not None or not name.endswith("_file")}  # as 0.1.0
    own = {name: value for name, value in asdict(options).items() if name not in _NOT_TRAINED}
    asked = {"model": options.model, "data": data, "setting": str(setting), **own, "test": options.test or []}
    return {**asked, **asdict(options.training)}


def _trained(
    options: GatesOptions, data: TaskData, setting: _Setting, asked: Mapping[str, object], progress: Progress
) -> GatedModel:
    """Train, evaluate, prune, evaluate, save."""
    folder = options.out / str(setting)
    examples, dev = data.examples("train"), data.batches(data.examples("dev"))
    tests = {name: data.batches(data.examples(name)) for name in options.test or ()}
    model = (
        new_model(options.model, data.task, data.processor, options.device, options.seed, from_scratch=True)
        if options.from_scratch
        else data.load_model(options.model, options.device)
    )
    before = evaluate(model, dev, data.task)
    recipe = Recipe(
        seed=options.seed, batch_size=options.data.batch_size, max_length=options.data.max_length
    ).with_options(options.training)  # fmt: skip
    heads = find_heads(model)
    objective = _attach(model, heads, setting, options, steps=recipe.steps(examples))
    scale = options.gate_lr_scale
    gate_lr = options.gate_lr if scale is None else scale * recipe.learning_rate
    finetune(
        model, data.processor, data.task, examples, folder / "checkpoints", recipe,
        gating=Gating(objective=objective, gate_lr=gate_lr), quiet=progress.quiet, force=options.force,
    )  # fmt: skip
    attached, gated = gates_of(model), evaluate(model, dev, data.task)
    decided, opened, components = attached.share_decided(), attached.open_heads(), attached.open_by_component()
    exactly = setting.by == "keep" and options.gate != "exact-k" and not attached.frozen
    pruned = _removed(attached, objective.target if exactly else None, f"{options.gate} gates, {setting}", progress)
    left = find_heads(pruned)
    facts = {**asked, **data.task.settings(), "train_examples": len(examples), "left_out": examples.left_out}
    result = GatedModel(
        setting=str(setting), gate=options.gate, task=data.task.name, objective=objective, before=before.summary(),
        gated=gated.summary(), dev=evaluate(pruned, dev, data.task).summary(),
        tests={name: evaluate(pruned, batches, data.task).summary() for name, batches in tests.items()},
        decided=decided, open=opened, components=components,
        trajectory=from_plain(tuple[GateStep, ...], read_trajectory(folder / "checkpoints")),
        heads=(len(heads), len(left)), kept=left.kept(), original=left.original_counts(), out=str(folder / "model"),
        facts={**facts, "learning_rate": recipe.learning_rate},
    )  # fmt: skip
    write_text(folder / "mask.json", HeadMask.from_dict(heads, left.kept()).to_json())
    with new_model_folder(folder / "model", Path(options.model)) as new:
        pruned.save_pretrained(new)
    write_text(folder / "gates.json", json.dumps({"asked": asked, "result": to_plain(result)}, indent=1))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _attach(model: nn.Module, heads: HeadMap, setting: _Setting, options: GatesOptions, steps: int) -> Objective:
    """Put gates on, choose what trains, and work out the objective in steps."""
    wanted = options.components.split(",") if options.components is not None else None
    given: dict[str, Any] = {name: value for name in ("temperature",) if (value := getattr(options, name)) is not None}
    if options.init is not None:
        given["init"] = _initial(options.init)
    if not options.scaling:
        if options.gate != "binary-concrete":
            raise GateError("--no-scaling is for binary-concrete gates: others do not scale.")
        given["scaling"] = False
    target = None
    if setting.by == "keep":
        target = _target(heads, wanted, setting.value, options.unit)
        if options.gate == "exact-k":
            given["keep"] = target
    freeze = options.freeze_after if options.freeze_after is not None or target is None else 0.7
    attach_gates(
        model, options.gate, components=wanted, unit=options.unit, rule=options.rule, seed=options.seed, **given
    )
    choose_trainable_(model, options.train)
    return Objective(
        weight=setting.value if setting.by == "lambda" else 0.0,
        target=None if options.gate == "exact-k" else target,
        over=options.over,
        warmup=round(options.warmup * steps),
        freeze_after=None if freeze is None else round(freeze * steps),
    )


def _initial(text: str) -> float | str:
    """Where the gates start."""
    try:
        return text if text == "glorot" else float(text)
    except ValueError:
        raise GateError(f"--init is '{text}'; expected a number, or glorot.") from None


def _target(heads: HeadMap, wanted: Sequence[str] | None, keep: float | int, unit: str) -> int:
    """How many heads are to stay, of those that get gates."""
    chosen = None if wanted is None else {canonical_component(name) for name in wanted}
    sites = [site for site in heads if chosen is None or site.component in chosen]
    gated = sum(site.num_heads for site in sites)
    target = gated - heads_to_prune(gated, keep=keep)
    sizes = {len(group) for site in sites for group in site.groups}
    if unit != "head" and len(sizes) == 1:  # gates open whole groups
        target -= target % max(sizes)
    return target


def _removed(attached: Gates, keep: int | None, by: str, progress: Progress) -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pruned = attached.remove_(keep=keep, about={"by": by})
    for warning in told:
        progress.note(f"warning: {warning.message}")
    return pruned.requires_grad_(True)


def finished(path: Path, asked: Mapping[str, object], *, force: bool = False) -> GatedModel | None:
    """The result of an earlier run with the same settings. One with other settings is refused, not overwritten, unless
    that was asked for."""
    try:
        stored = loads(bounded_text(path))
    except (OSError, ValueError):
        return None
    if not isinstance(stored, dict) or stored.get("asked") != json.loads(json.dumps(asked)):
        if force:
            return None
        raise GateError(f"'{path.parent}' holds a run with other settings. Choose another --out, or say --force.")
    try:
        found = from_plain(GatedModel, stored.get("result"))
        open_by_pairs(found.open)
        shapes = {tuple((site, len(row)) for site, row in one.prob_open.items()) for one in found.trajectory}
        if found.setting != asked["setting"] or len(shapes) > 1:  # the setting is the name of a folder
            raise FileFormatError(f"the setting is '{found.setting[:60]}', with gates of {len(shapes)} shapes")
    except HeadpruneError as error:
        raise FileFormatError(
            f"'{path}' was edited or damaged ({error}). Remove '{path.parent}', and it is trained again."
        ) from error
    return found
