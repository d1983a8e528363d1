"""The job behind `headprune shrink`: folders, lists of budgets, going on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import headprune as hp
from headprune.jobs.options.base import TaskOptions
from headprune.jobs.options.shrink import ShrinkOptions
from headprune.jobs.shrink import shrink
from headprune.shrink import Shrinker
from tests.docs.test_guides import write_llm
from tests.tasks.toy import sentences, write_data, write_model


@pytest.fixture
def own(tmp_path):
    """A model and a table of somebody's own, with a name of their own."""
    model = write_model(tmp_path / "model")
    for name, seed in (("reviews.txt", 0), ("more", 1)):
        rows = "\n".join(f"{text}\t{label}" for text, label in sentences(64, seed))
        (tmp_path / name).write_text(f"review\tstars\n{rows}\n")
    data = TaskOptions(
        task="reviews", text="review", label="stars", train_file=tmp_path / "reviews.txt", dev_file=tmp_path / "more",
        max_length=16, batch_size=8,
    )  # fmt: skip
    return ShrinkOptions(model=str(model), data=data, macs="60%", length=16, out=tmp_path / "small")


def changed(options, **given):
    from dataclasses import replace

    return replace(options, **given)


def test_a_table_of_ones_own_is_all_it_takes(own):
    """The folder loads like any other; what was done lies beside it; the same command again keeps it."""
    result = shrink(own)
    (shrunk,) = result.models
    model = AutoModelForSequenceClassification.from_pretrained(own.out)
    assert shrunk.after.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert json.loads((own.out / "shrink.json").read_text()) == json.loads(json.dumps(shrunk.to_dict()))
    assert not (own.out / "unfinished").exists()
    assert (own.out / "tokenizer.json").is_file()
    date = (own.out / "model.safetensors").stat().st_mtime_ns
    assert shrink(own).models == result.models
    assert (own.out / "model.safetensors").stat().st_mtime_ns == date
    with pytest.raises(hp.HeadpruneError, match="--force"):
        shrink(changed(own, macs="50%"))


def test_a_list_of_budgets_is_several_folders(own, tmp_path):
    """Each model is the one of a single run, and is not made again."""
    several = shrink(changed(own, macs="80%,60%"))
    assert [shrunk.macs_left <= share for shrunk, share in zip(several.models, (0.8, 0.6), strict=True)] == [True] * 2
    shrink(changed(own, out=tmp_path / "alone"))
    one, other = (
        AutoModelForSequenceClassification.from_pretrained(place).state_dict()
        for place in (own.out / "macs-60pct", tmp_path / "alone")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [kept["out"] for kept in several.to_dict()["models"]] == [str(own.out / f"macs-{n}pct") for n in (80, 60)]


def test_an_interrupted_run_goes_on(own, monkeypatch):
    """Scores are computed once, whatever comes after them."""
    whole = shrink(changed(own, dry_run=True, out=None))

    def stop(self, budget, amount, repeats=15):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Shrinker, "shrink_", stop)
        with pytest.raises(KeyboardInterrupt):
            shrink(own)
    assert (own.out / "unfinished").is_dir()
    told = []
    shrunk = shrink(own, progress=Told(told)).models[0]
    assert not any("scoring" in step for step in told)
    assert any("removing" in step for step in told)
    assert shrunk.kept == whole.models[0].kept


def with_more_to_say(folder):
    """Weights so large that answers differ from text to text."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.save_pretrained(folder)


def test_scores_of_other_weights_are_not_taken_for_those_of_this_model(own, monkeypatch):
    """The model was trained further between an interrupted run and the next."""

    def stop(self, budget, amount, repeats=15):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Shrinker, "shrink_", stop)
        with pytest.raises(KeyboardInterrupt):
            shrink(own)
    with_more_to_say(own.model)
    told = []
    resumed = shrink(own, progress=Told(told)).models[0]
    assert any("scoring" in step for step in told)
    assert not (own.out / "unfinished").exists()
    assert resumed.kept == shrink(changed(own, dry_run=True, out=None)).models[0].kept


def test_a_count_and_a_share_have_folders_of_their_own(own):
    """4 heads are not 4 %."""
    result = shrink(changed(own, macs=None, prune="4,40%"))
    assert [Path(out).name for out in result.out] == ["prune-4", "prune-40pct"]
    assert [model.after.heads for model in result.models] == [4, 5]


def test_a_little_training_brings_it_nearer(own, monkeypatch):
    """With the whole model as teacher, and not on the examples of the price."""
    from headprune.jobs import retrain

    with_more_to_say(own.model)
    seen = []
    asked = changed(own, macs="40%", epochs=2.0, lr=3e-3)
    real = retrain.finetune

    def watched(model, processor, task, examples, folder, recipe, **more):
        seen.append(len(examples))
        return real(model, processor, task, examples, folder, recipe, **more)

    monkeypatch.setattr(retrain, "finetune", watched)
    (shrunk,) = shrink(asked).models
    assert shrunk.training.examples == seen[0] == 3 * shrunk.price[1].examples  # a quarter is held out
    assert shrunk.training.helped
    assert shrunk.price[1].kl < shrunk.training.untrained.kl
    assert "with the whole model as teacher; before: " in str(shrunk)
    assert not (own.out / "unfinished").exists()
    model = AutoModelForSequenceClassification.from_pretrained(own.out)
    assert sum(parameter.numel() for parameter in model.parameters()) == shrunk.after.parameters


def test_interrupted_training_goes_on(own, monkeypatch):
    """After the first of two epochs: weights and best state are those of a run that nobody interrupted."""
    from headprune.tasks.best_state import BestState

    with_more_to_say(own.model)
    asked = changed(own, macs="40%", epochs=2.0, lr=3e-3)
    (whole,) = shrink(changed(asked, out=own.out.with_name("whole"))).models
    real, looks = BestState.look, []

    def stop(self, model):
        looks.append(1)
        if len(looks) == 3:  # before training, after an epoch, after another
            raise KeyboardInterrupt
        return real(self, model)

    with monkeypatch.context() as broken:
        broken.setattr(BestState, "look", stop)
        with pytest.raises(KeyboardInterrupt):
            shrink(asked)
    (resumed,) = shrink(asked).models
    assert resumed.price[1].kl == pytest.approx(whole.price[1].kl, rel=1e-5)
    one, other = (
        AutoModelForSequenceClassification.from_pretrained(place).state_dict()
        for place in (own.out, own.out.with_name("whole"))
    )
    for name, weight in other.items():
        torch.testing.assert_close(one[name], weight, rtol=1e-5, atol=1e-6)


def test_training_that_only_harms_is_taken_back(own):
    """A rate that destroys the model: what is saved is the untrained one."""
    with_more_to_say(own.model)
    untrained = shrink(changed(own, out=own.out.with_name("plain"))).models[0]
    (shrunk,) = shrink(changed(own, epochs=1.0, lr=50.0)).models
    assert not shrunk.training.helped
    assert "the untrained model is kept" in str(shrunk)
    assert shrunk.price[1].kl == pytest.approx(untrained.price[1].kl, rel=1e-5)
    one, other = (
        AutoModelForSequenceClassification.from_pretrained(place).state_dict()
        for place in (own.out, own.out.with_name("plain"))
    )
    assert all(torch.equal(one[name], other[name]) for name in other)


class Told:
    """Progress that remembers."""

    quiet = True

    def __init__(self, steps):
        self.told = steps

    def steps(self, total):
        from contextlib import nullcontext

        return nullcontext(self.told.append)


def test_plain_text_is_enough_for_a_language_model(tmp_path):
    """A file, or a folder of them."""
    write_llm(tmp_path)
    data = TaskOptions(task=None, max_length=8, batch_size=8)
    asked = ShrinkOptions(
        model=str(tmp_path / "llm"), data=data, corpus=[tmp_path / "text"], params="90%", length=8, calibration=64,
        out=tmp_path / "small",
    )  # fmt: skip
    (shrunk,) = shrink(asked).models
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert sum(parameter.numel() for parameter in model.parameters()) <= 0.9 * shrunk.before.parameters
    assert shrunk.price[1].loss is not None  # the text itself is the label
    (tmp_path / "empty").mkdir()
    with pytest.raises(hp.HeadpruneError, match=r"expected files that end in \.txt or \.jsonl"):
        shrink(changed(asked, corpus=[tmp_path / "empty"], out=tmp_path / "other"))


def test_a_classifier_takes_lines_of_text_without_labels(tmp_path):
    """Its own answers stand for labels."""
    model = write_model(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("\n".join(text for text, _ in sentences(64, 0)))
    data = TaskOptions(task=None, max_length=16, batch_size=8)
    asked = ShrinkOptions(
        model=str(model), data=data, corpus=[tmp_path / "lines.txt"], macs="0.7", length=16, dry_run=True
    )
    (shrunk,) = shrink(asked).models
    assert "no labels: chosen by the model's own answers" in shrunk.notes
    assert shrunk.macs_left <= 0.7


def test_points_of_the_task_are_a_budget(tmp_path):
    """Of its metric, on dev."""
    data = TaskOptions(task="sst2", data_dir=write_data(tmp_path / "data"), max_length=16, batch_size=8)
    model = str(write_model(tmp_path / "model"))
    (shrunk,) = shrink(ShrinkOptions(model=model, data=data, max_drop="100", length=16, dry_run=True)).models
    assert shrunk.macs_left < 0.7


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"macs": None}, "No budget was given"),
        ({"params": "50%"}, "You gave two: --macs and --params"),
        ({"out": None}, "--out"),
        ({"macs": "much"}, "much"),
        ({"macs": "1.5"}, "expected a share"),
        ({"macs": None, "speedup": "nan"}, "expected 0 or more"),
        ({"macs": "1e400"}, "expected 0 or more"),
        ({"epochs": -1.0}, "expected 0 or more, and more than 0"),
        ({"lr": float("nan")}, "expected 0 or more, and more than 0"),
        ({"parts": "layers"}, "layers"),
        ({"data": TaskOptions(task=None)}, "--corpus"),
    ],
)
def test_bad_options_are_told_before_a_model_is_loaded(own, given, told):
    """Nothing is written."""
    with pytest.raises(hp.HeadpruneError, match=told):
        shrink(changed(own, model="no-such-model", **given))
    assert not own.out.exists()


def test_half_is_half_however_it_is_written():
    """0.5 and 50 % are the same share, 2 is a count."""
    read = [ShrinkOptions(model="x", prune=text).amounts()[1][text] for text in ("0.5", "50%", "2")]
    assert read == [0.5, 0.5, 2]
