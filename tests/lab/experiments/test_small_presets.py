"""Every preset at small scale from end to end, with everything in it made tiny: steps hand on what the next ones need,
and every value that a preset looks at is there. What comes out means nothing; that it comes out does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from transformers import BertConfig, BertModel

from headprune.lab.experiments.inputs import fingerprint
from headprune.lab.experiments.library import all_presets
from headprune.lab.experiments.runs import note_runs, plan_run, read_runs
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.sweep import Inline, run_sweep
from headprune.lab.report import gather, html_page, markdown_page
from tests.lab.analysis.test_functions import CONLLU
from tests.tasks.parallel import pairs
from tests.tasks.toy import sentences, tokenizer

# What makes a step tiny; sizes that values and patterns speak of (3 layers of 8 heads, 6 layers of 12) stay.
TINY = {
    "train-mt": {"preset": "tiny", "layers": 3, "heads": 8, "width": 32, "epochs": 1, "batch-size": 16},
    "train-lm": {"preset": "tiny", "updates": 6},
    "finetune": {"epochs": 1, "updates": 3},
    "gates": {"epochs": 1, "updates": 4, "gate-lr": 1.0},
    "ablate": {"examples": 4, "choose-examples": 4},
    "curve": {"examples": 4, "rescore-examples": 4},
    "score": {"examples": 8},
}


def shrunk(preset):
    scale = preset.scale("small")
    steps = []
    for step in scale.steps:
        options = dict(step.options)
        for name, value in TINY.get(step.command, {}).items():
            if name in ("choose-examples", "gate-lr", "rescore-examples") and name not in options:
                continue
            options[name] = value
        if options.get("task") == "stream-lm":
            options |= {"max-length": 16, "batch-size": 4}
        if options.get("width") == 32 and "{width}" in str(step.options):
            options |= {"width": 16, "persistent": 8}
        if options.get("task") == "translation" and step.command != "score":
            options["beams"] = 1  # a beam of five takes five times as long
        options.pop("batch-tokens", None)
        if step.work == "speed":
            options |= {"length": 8, "repeats": 2}
        steps.append(replace(step, options=options))
    steps = [replace(step, seeds=None) for step in steps]
    return replace(preset, scales={"small": replace(scale, steps=tuple(steps), seeds=(1,))})


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """An input of each name, as small as it can be."""
    base = tmp_path_factory.mktemp("inputs")
    torch.manual_seed(0)
    config = BertConfig(vocab_size=23, hidden_size=24, num_hidden_layers=6, num_attention_heads=12, intermediate_size=8,
                        max_position_embeddings=130)  # fmt: skip
    BertModel(config).save_pretrained(base / "encoder")  # no head: tasks have other classes
    tokenizer().save_pretrained(base / "encoder")
    rows = {"train": sentences(48, 0), "dev": sentences(24, 1)}
    for name in ("sst2", "cola", "mrpc", "snli", "pairs", "help", "text", "words"):
        (base / name).mkdir()
    for part, found in rows.items():
        (base / "sst2" / f"{part}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in found))
        mrpc = [{"sentence1": text, "sentence2": text, "label": label} for text, label in found]
        (base / "mrpc" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mrpc))
        nli = [{"premise": text, "hypothesis": text, "label": n % 3} for n, (text, _) in enumerate(found)]
        (base / "snli" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nli))
    for part, seed in (("in_domain_train", 0), ("in_domain_dev", 1), ("out_of_domain_dev", 2)):
        lines = [f"x\t{label}\t\t{text}\n" for text, label in sentences(24, seed)]
        (base / "cola" / f"{part}.tsv").write_text("".join(lines))
    for part, count in (("train", 200), ("val", 12), ("test_2016_flickr", 12)):
        words = 20 if part == "train" else 3  # what is translated is short: a translation may be twice as long
        for side, ending in enumerate(("en", "de")):
            lines = [" ".join(row[side].split()[:words]) for row in pairs(count, count)]
            for corpus, name in (("pairs", part), ("help", part.replace("_2016_flickr", ""))):
                (base / corpus / f"{name}.{ending}").write_text("".join(line + "\n" for line in lines))
    for part, count in (("train", 60), ("dev", 8), ("test", 8)):
        for kind in ("text", "words"):
            (base / kind / f"{part}.txt").write_text("the cat sat on the mat and saw a dog. " * count)
    (base / "trees.conllu").write_text(CONLLU)
    found = {path.name: path for path in base.iterdir() if path.is_dir()}
    return {**found, "trees": base / "trees.conllu"}


@pytest.mark.long
def test_every_small_preset_runs_to_its_last_value(given, tmp_path):
    """One folder for all, as a person would have it; then the report of everything."""
    store = Store(tmp_path / "runs")
    prints = {name: fingerprint(path) for name, path in given.items()}
    known = {print_: given[name] for name, print_ in prints.items()}
    planned = [plan_run(shrunk(preset), "small", prints) for preset in all_presets()]
    note_runs(store, [run for run, _ in planned])
    summary = run_sweep([trial for _, trials in planned for trial in trials], store, Inline(), inputs=known)
    assert [(record.trial.label, record.error) for record in summary.failed] == []
    assert summary.blocked == ()
    lacking = [
        (run.preset.name, value.name, value.problem)
        for run in read_runs(store)
        for value in run.values(run.records(store))
        if not value.found
        and "pearson' is None" not in value.problem  # no head of so small a model may matter
        and "no place" not in value.problem  # later epochs than the one there is
    ]
    assert lacking == []
    report = gather([store.folder])
    assert len(report.told) == len(planned)
    assert len(html_page(report)) > 1e6
    assert "## Size and speed" in markdown_page(report)
