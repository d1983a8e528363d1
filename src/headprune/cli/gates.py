"""`headprune gates`: let training decide which heads stay."""

from __future__ import annotations

import json as json_module
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.companions import copy_companions
from headprune.checkpoint.load_model import check_writable
from headprune.cli.finetune import new_model
from headprune.cli.options import Device, Json, Model, Picture, Seed
from headprune.cli.widening import takes, takes_task
from headprune.errors import FileFormatError, GateError
from headprune.jobs.options.base import amount
from headprune.jobs.options.task import TaskOptions
from headprune.jobs.options.training import Tests, TrainingOptions
from headprune.structure.find import heads_left
from headprune.tasks.data import TaskData, open_new_task, open_task
from headprune.tasks.processor import match_padding_
from headprune.typed_json import to_plain

if TYPE_CHECKING:
    from headprune.gates import Gates, Objective


@dataclass(frozen=True)
class _Ways:
    """How gates are made and trained, as typed; the same for every lambda or number of heads."""

    gate: str
    components: str | None
    unit: str
    train: str
    rule: str
    temperature: float | None
    init: float | None
    scaling: bool
    training: TrainingOptions
    gate_lr: float
    gate_lr_scale: float | None
    warmup: float
    freeze_after: float | None
    over: str
    from_scratch: bool
    test: list[str]
    seed: int


@takes(TrainingOptions, "training", epochs=2.0, lr=2e-5)
@takes_task()
def gates(
    model: Model,
    data: TaskOptions,
    training: TrainingOptions,
    out: Annotated[Path, typer.Option(help="Folder for the pruned models, gates.json and pictures.")],
    weights: Annotated[
        list[float] | None, typer.Option("--lambda", help="Weight of the L0 penalty; give it again for a sweep.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Heads to keep instead, a share (50%) or a count (36); repeatable.")
    ] = None,
    gate: Annotated[str, typer.Option(help="hard-concrete (Voita), binary-concrete (Shim) or exact-k.")] = (
        "hard-concrete"
    ),
    components: Annotated[str | None, typer.Option(help="Gate only these: encoder, decoder, cross.")] = None,
    unit: Annotated[str, typer.Option(help="One gate per head, per KV group (group), or auto.")] = "auto",
    train: Annotated[
        str, typer.Option(help="Which weights train besides: all, gates (none), encoder, or a pattern of names.")
    ] = "all",
    rule: Annotated[str, typer.Option(help="Values at the end: paper (0 or 1) or clip (fractions, folded in).")] = (
        "paper"
    ),
    temperature: Annotated[float | None, typer.Option(help="Of the gates; default the papers'.")] = None,
    init: Annotated[float | None, typer.Option(help="Initial log_alpha; default 2, which is 88 % open.")] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling/--no-scaling", help="binary-concrete: scale open heads by heads / open heads.")
    ] = True,
    gate_lr: Annotated[float, typer.Option(help="Peak learning rate of the gates.")] = 0.05,
    gate_lr_scale: Annotated[
        float | None, typer.Option(help="The same as a multiple of --lr: 10 in Shim et al., 1 in Voita et al.")
    ] = None,
    warmup: Annotated[float, typer.Option(help="Share of the steps over which the penalty rises.")] = 0.2,
    freeze_after: Annotated[
        float | None, typer.Option(help="Share of the steps after which gates are frozen; default 0.7 with --keep.")
    ] = None,
    over: Annotated[str, typer.Option(help="Penalty: sum over heads, or site-mean as in Voita et al.'s code.")] = "sum",
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Start from random weights (a control of Voita et al.).")
    ] = False,
    test: Tests = None,
    seed: Seed = 42,
    picture: Picture = "html",
    json: Json = False,
    device: Device = "cpu",
) -> None:
    """Train gates on the heads of a converged model, prune what they close, and save it. Runs resume."""
    check_writable(out)
    settings: list[tuple[str, Any]] = [("lambda", weight) for weight in weights or ()]
    settings += [("keep", amount(text)) for text in keep or ()]
    if not settings:
        raise GateError("Say how much to prune: --lambda 0.02 (the papers' way), or --keep 50% (finds its own lambda).")
    from headprune.files import write_text
    from headprune.tasks.processes import process_count

    if process_count() > 1:
        raise GateError("This command trains on one process. For several, use hp.GateTrainer in a script of your own.")
    ways = _Ways(
        gate, components, unit, train, rule, temperature, init, scaling, training, gate_lr, gate_lr_scale, warmup,
        freeze_after, over, from_scratch, test or [], seed,
    )  # fmt: skip
    opened = open_new_task(data, model) if from_scratch else open_task(data, model)
    results = [_trained(model, opened, out, setting, ways, quiet=json, device=device) for setting in settings]
    results.sort(key=lambda result: result["heads"][1])
    write_text(out / "gates.json", json_module.dumps(results, indent=1))
    pages = _draw(results, out, picture)
    if json:
        typer.echo(json_module.dumps(results, indent=1))
        return
    for result in results:
        low, high = result["dev"]["interval"]
        typer.echo(
            f"{result['setting']}: {result['heads'][0]} -> {result['heads'][1]} heads, {result['dev']['metric']} "
            f"{result['dev']['score']:.4f} ({low:.4f} to {high:.4f}), before {result['before']['score']:.4f}; "
            f"{result['out']}"
        )
    typer.echo(f"pictures: {', '.join(str(page) for page in pages)}")


def _trained(
    model: str, data: TaskData, out: Path, setting: tuple[str, Any], ways: _Ways, *, quiet: bool, device: str
) -> dict[str, Any]:
    """One lambda or number of heads: train, evaluate, prune, evaluate, save. A finished one is not run again."""
    from headprune.files import write_text
    from headprune.gates import gates_of
    from headprune.gates.trainer import read_trajectory
    from headprune.heads import HeadMask
    from headprune.structure import find_heads
    from headprune.tasks import evaluate
    from headprune.tasks.finetune import Gating, finetune
    from headprune.tasks.recipe import Recipe

    name = f"{setting[0]}-{setting[1]}"  # 0.5 and 1.0 are shares, 1 is a count
    folder = out / name
    options = {name: None if value is None else str(value) for name, value in asdict(data.options).items()}
    asked = {"model": model, "data": options, "setting": name, **asdict(ways), **asdict(ways.training)}
    del asked["training"]
    known = _finished(folder / "gates.json", asked)
    if known is not None:
        return known
    examples, dev = data.examples("train"), data.batches(data.examples("dev"))
    tests = {name: data.batches(data.examples(name)) for name in ways.test}
    if ways.from_scratch:
        loaded = match_padding_(new_model(model, data.task, device, ways.seed, from_scratch=True), data.processor)
    else:
        loaded = data.load_model(model, device)
    before = evaluate(loaded, dev, data.task)
    recipe = Recipe(
        seed=ways.seed, batch_size=data.options.batch_size, max_length=data.options.max_length
    ).with_options(ways.training)
    objective = _attach(loaded, setting, ways, steps=recipe.steps(examples))
    heads = find_heads(loaded)
    gate_lr = ways.gate_lr if ways.gate_lr_scale is None else ways.gate_lr_scale * recipe.learning_rate
    gating = Gating(objective=objective, gate_lr=gate_lr)
    finetune(loaded, data.processor, data.task, examples, folder / "checkpoints", recipe, gating=gating, quiet=quiet)
    attached = gates_of(loaded)
    gated = evaluate(loaded, dev, data.task)
    result: dict[str, Any] = {
        **asked, **data.task.settings(), "train_examples": len(examples), "left_out": examples.left_out,
        "learning_rate": recipe.learning_rate, "objective": objective.to_dict(), "before": to_plain(before.summary()),
        "gated": to_plain(gated.summary()), "decided": attached.share_decided(), "open": attached.open_heads(),
        "components": attached.open_by_component(), "trajectory": read_trajectory(folder / "checkpoints"),
    }  # fmt: skip
    keep = objective.target if setting[0] == "keep" and ways.gate != "exact-k" and not attached.frozen else None
    pruned = _removed(attached, keep, f"{ways.gate} gates, {name}")
    left = find_heads(pruned)
    result |= {"dev": to_plain(evaluate(pruned, dev, data.task).summary()), "heads": [len(heads), len(left)]}
    result["tests"] = {
        name: to_plain(evaluate(pruned, batches, data.task).summary()) for name, batches in tests.items()
    }
    result |= heads_left(pruned)
    write_text(folder / "mask.json", HeadMask.from_dict(heads, result["kept"]).to_json())
    pruned.save_pretrained(folder / "model")
    copy_companions(Path(model), folder / "model")
    result["out"] = str(folder / "model")
    write_text(folder / "gates.json", json_module.dumps({"asked": asked, "result": result}, indent=1))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _attach(model: Any, setting: tuple[str, Any], ways: _Ways, steps: int) -> Objective:
    """Put gates on, choose what trains, and work out the objective in steps."""
    from headprune.gates import Objective, attach_gates
    from headprune.gates.trainer import choose_trainable_
    from headprune.heads import heads_to_prune
    from headprune.structure import find_heads

    heads = find_heads(model)
    wanted = ways.components.split(",") if ways.components is not None else None
    options = {name: value for name in ("temperature", "init") if (value := getattr(ways, name)) is not None}
    if not ways.scaling:
        if ways.gate != "binary-concrete":
            raise GateError("--no-scaling is for binary-concrete gates: others do not scale.")
        options["scaling"] = False
    target = None
    if setting[0] == "keep":
        from headprune.heads import canonical_component

        chosen = None if wanted is None else {canonical_component(name) for name in wanted}
        gated = sum(site.num_heads for site in heads if chosen is None or site.component in chosen)
        target = gated - heads_to_prune(gated, keep=setting[1])
        if ways.unit != "head":  # gates open whole groups
            sizes = {
                len(group) for site in heads for group in site.groups if chosen is None or site.component in chosen
            }
            target -= target % max(sizes, default=1) if len(sizes) == 1 else 0
        if ways.gate == "exact-k":
            options["keep"] = target
    freeze = ways.freeze_after if ways.freeze_after is not None or target is None else 0.7
    attach_gates(model, ways.gate, components=wanted, unit=ways.unit, rule=ways.rule, seed=ways.seed, **options)  # type: ignore[arg-type]
    choose_trainable_(model, ways.train)
    return Objective(
        weight=setting[1] if setting[0] == "lambda" else 0.0,
        target=None if ways.gate == "exact-k" else target,
        over=ways.over,  # type: ignore[arg-type]
        warmup=round(ways.warmup * steps),
        freeze_after=None if freeze is None else round(freeze * steps),
    )


def _removed(attached: Gates, keep: int | None, by: str) -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pruned = attached.remove_(keep=keep, about={"by": by})
    for warning in told:
        typer.echo(f"warning: {warning.message}", err=True)
    return pruned.requires_grad_(True)


def _finished(path: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The result of an earlier run with the same settings. One with other settings is refused, not overwritten."""
    from headprune.files import loads

    try:
        stored = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(stored, dict) or stored.get("asked") != json_module.loads(json_module.dumps(asked)):
        raise GateError(f"'{path.parent}' holds a run with other settings. Choose another --out, or remove it.")
    found: dict[str, Any] = stored.get("result", {})
    if not _is_result(found, asked["setting"]):
        raise FileFormatError(f"'{path}' was edited or damaged. Remove '{path.parent}', and it is trained again.")
    return found


def _is_result(found: Any, setting: str) -> bool:
    """Whether a stored result has what is shown of it. Its setting is the name of a folder: the one that was asked."""
    from headprune.errors import HeadpruneError

    try:
        before, after = found["heads"]
        low, high = found["dev"]["interval"]
        numbers = [before, after, low, high, found["dev"]["score"], found["before"]["score"]]
        numbers += [found["objective"]["weight"] or 0, *found["components"].values(), *found["open"].values()]
        entries = [(entry["step"], entry["prob_open"]) for entry in found["trajectory"]]
        shapes = {tuple((site, len(row)) for site, row in rows.items()) for _, rows in entries}
        numbers += [step for step, _ in entries] + [x for _, rows in entries for row in rows.values() for x in row]
        texts = [found["dev"]["metric"], found["out"]]
        _pairs(found["open"])
    except (KeyError, TypeError, ValueError, AttributeError, HeadpruneError):
        return False
    fits = found.get("setting") == setting and len(shapes) <= 1 and all(isinstance(text, str) for text in texts)
    return fits and all(type(number) in (int, float) for number in numbers)


def _draw(results: Sequence[dict[str, Any]], out: Path, kind: str) -> list[Path]:
    """Retained heads against lambda; score against retained heads (Voita et al., Figure 7); active heads by component
    (Figure 9) and by pairs of layers (Figure 10) against pruned ones; P(open) over training."""
    from headprune.lab.analysis.pictures import line_picture, write_picture

    kept = [result["heads"][1] for result in results]
    pruned = [result["heads"][0] - result["heads"][1] for result in results]
    metric = results[0]["dev"]["metric"]
    pages: list[tuple[str, dict[str, Any], str, str, str]] = []
    by_lambda = [(r["objective"]["weight"], r["heads"][1]) for r in results if r["objective"]["weight"]]
    if len(by_lambda) > 1:
        xs, ys = zip(*sorted(by_lambda), strict=True)
        pages.append(("lambda", {"heads": (xs, ys)}, "Retained heads", "lambda", "heads"))
    if len(results) > 1:
        scores = [result["dev"]["score"] for result in results]
        pages.append(("score", {metric: (kept, scores)}, f"{metric} and retained heads", "heads", metric))
        names = list(results[0]["components"])
        lines = {name: (pruned, [result["components"][name] for result in results]) for name in names}
        pages.append(("components", lines, "Active heads by component", "heads pruned", "active heads"))
        pairs = {pair: (pruned, [_pairs(r["open"])[pair] for r in results]) for pair in _pairs(results[0]["open"])}
        pages.append(("layers", pairs, "Active heads by pairs of layers", "heads pruned", "active heads"))
    written = [
        write_picture(line_picture(lines, title=title, x=x, y=y), out / name, kind)
        for name, lines, title, x, y in pages
    ]
    for result in results:
        steps = [entry["step"] for entry in result["trajectory"]]
        sites = list(result["trajectory"][0]["prob_open"]) if result["trajectory"] else []
        lines = {
            f"{site}:{head}": (steps, [entry["prob_open"][site][head] for entry in result["trajectory"]])
            for site in sites
            for head in range(len(result["trajectory"][0]["prob_open"][site]))
        }
        drawn = line_picture(lines, title=f"P(open) while training, {result['setting']}", x="step", y="P(open)")
        written.append(write_picture(drawn, out / result["setting"] / "trajectory", kind))
    return written


def _pairs(opened: dict[str, int]) -> dict[str, int]:
    """Open heads of layers 0-1, 2-3 … of each component."""
    from headprune.heads.ids import SiteName

    counts: dict[str, int] = {}
    for site, count in opened.items():
        name = SiteName.parse(site)
        first = name.layer // 2 * 2
        pair = f"{f'{name.tower}.' if name.tower else ''}{name.component} {first}-{first + 1}"
        counts[pair] = counts.get(pair, 0) + count
    return counts
