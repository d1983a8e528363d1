"""finetune, score, ablate, curve and prune by score, on a toy task from end to end."""

from __future__ import annotations

import itertools
import json
from functools import partial
from types import SimpleNamespace

import pytest
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

import headprune as hp
from headprune.cli.app import app
from headprune.cli.budget import Budget
from headprune.errors import CheckpointError, DataError, HeadpruneError, MaskError
from headprune.heads import HeadScores
from headprune.scoring.resumable import score_in_parts
from headprune.tasks import Source, find_task
from tests.tasks.toy import tokenizer, write_data, write_model


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A toy classifier, its data, its scores."""
    root = tmp_path_factory.mktemp("toy")
    data = write_data(root / "data")
    model = write_model(root / "model")
    told = call("finetune", model, "--data-dir", data, "--epochs", 6, "--lr", 3e-3, "--batch-size", 20, "--seed", 0,
                "--out", root / "tuned", "--json")  # fmt: skip
    assert json.loads(told[told.index("{") :])["dev"]["score"] > 0.9
    call("score", root / "tuned", "--data-dir", data, "--out", root / "scores")
    return root


def test_scores_are_written_with_a_picture(trained):
    """Method, data and count on record."""
    scores = HeadScores.from_json((trained / "scores" / "scores.json").read_text())
    assert (scores.method, scores.data) == ("sensitivity", "sst2 train, 200 examples")
    assert scores.counts["encoder.0"] == 200.0
    assert (trained / "scores" / "scores.html").stat().st_size < 100_000
    assert (trained / "scores" / "plotly.min.js").exists()
    assert not (trained / "scores" / "unfinished").exists()


def test_an_interrupted_scoring_goes_on(trained, tmp_path, monkeypatch):
    """Nothing is scored twice, and the result is the same."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(trained / "tuned")
    rows = find_task("sst2").load(Source(trained / "data" / "sst2"), "train", tokenizer(), 64)
    batches = [{k: v for k, v in b.items() if k != "row"} for b in rows.batches(batch_size=10)]
    whole = score_in_parts(model, batches, tmp_path / "a")
    seen = []

    def stop_late(step):
        seen.append(step)
        if len(seen) == 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_in_parts(model, batches, tmp_path / "b", progress=stop_late)
    assert (tmp_path / "b").exists()
    steps = []
    resumed = score_in_parts(model, batches, tmp_path / "b", progress=steps.append)
    assert resumed == whole
    assert steps.count("scoring") == 4
    assert not (tmp_path / "b").exists()


def test_ablation_tells_change_and_significance(trained, tmp_path):
    """Per head, raw and corrected; the base score is that of the tuned model."""
    result = json.loads(call("ablate", trained / "tuned", "--data-dir", trained / "data", "--out", tmp_path, "--json"))
    assert len(result["heads"]) == 8
    assert result["base"]["score"] > 0.9
    assert result["share_reused"] > 0.3
    for row in result["heads"].values():
        assert row["change"] == pytest.approx(row["score"] - result["base"]["score"])
        assert row["p"] <= row["p_bh"] + 1e-12 <= row["p_holm"] + 2e-12
    assert (tmp_path / "ablation.html").exists()
    assert (tmp_path / "histogram.html").exists()
    text = call("ablate", trained / "tuned", "--data-dir", trained / "data", "--out", tmp_path, "--all-but-one")
    assert "after Holm" in text


def test_a_curve_starts_whole_and_ends_empty(trained, tmp_path):
    """In the order of the scores, at random with a band, and re-scored."""
    result = json.loads(call(
        "curve", trained / "tuned", "--data-dir", trained / "data", "--scores", trained / "scores" / "scores.json",
        "--random", 2, "--rescore", "--steps", 4, "--out", tmp_path, "--json",
    ))  # fmt: skip
    assert {name: len(runs) for name, runs in result["curves"].items()} == {
        "sensitivity": 1,
        "random": 2,
        "sensitivity, re-scored": 1,
    }
    for runs in result["curves"].values():
        for run in runs:
            assert [point["pruned"] for point in run["points"]] == [0, 2, 4, 6, 8]
            kept = [{(s, h) for s, hs in p["kept"].items() for h in hs} for p in run["points"]]
            assert all(later <= earlier for earlier, later in itertools.pairwise(kept))
            assert run["points"][0]["score"] > 0.9
            assert 0.3 < run["points"][-1]["score"] < 0.7
    assert (tmp_path / "curve.html").exists()


def test_prune_by_scores_and_pattern(trained, tmp_path):
    """The lowest go; the card says by what."""
    scores = trained / "scores" / "scores.json"
    call("prune", trained / "tuned", "--scores", scores, "--prune", "50%", "--at-least", 1, "--out", tmp_path / "half")
    card = (tmp_path / "half" / "README.md").read_text()
    assert "4 heads by prune 50% by sensitivity on sst2 train, 200 examples" in card
    result = json.loads(call("prune", trained / "tuned", "--pattern", "top:1", "--dry-run", "--json"))
    assert result["removed"] == {"encoder.1": [0, 1, 2, 3]}


def test_prune_within_a_drop(trained, tmp_path):
    """Chosen on one half of dev, told on the other."""
    scores = trained / "scores" / "scores.json"
    words = ("--scores", scores, "--max-drop", 5, "--task", "sst2", "--data-dir", trained / "data")
    result = json.loads(call("prune", trained / "tuned", *words, "--out", tmp_path / "small", "--json"))
    budget = result["budget"]
    drop = budget["validation"]["full"]["score"] - budget["validation"]["pruned"]["score"]
    assert drop <= 0.05 + 1e-9
    assert budget["validation"]["full"]["examples"] + budget["test"]["full"]["examples"] == 60
    assert result["heads"][1] < result["heads"][0]
    assert (
        len(hp.find_heads(AutoModelForSequenceClassification.from_pretrained(tmp_path / "small"))) == result["heads"][1]
    )
    assert "on the other half" in call("prune", trained / "tuned", *words, "--dry-run")


def test_a_drop_that_is_larger_elsewhere_is_told():
    """The amount holds on the half that heads were chosen on; on the other it may not, and a person should know."""
    task = find_task("sst2")
    told = partial(Budget.told, SimpleNamespace(examples=SimpleNamespace(task=task), max_drop=1.0))

    def report(lost):
        half = {"full": {"score": 0.9}, "pruned": {"score": 0.9 - lost}}
        return {"validation": half, "test": half, "test_change": {"change": -lost, "interval": [-lost, -lost]}}

    assert "more than the 1 asked for" in told(report(0.03))
    assert "more than" not in told(report(0.005))


def test_what_was_trained_is_not_replaced(trained, tmp_path):
    """The model itself, another trained one; what prune wrote may be written again, until it was trained further."""
    words = ("prune", trained / "tuned", "--prune", "50%")
    for folder in (trained / "tuned", trained / "model"):
        before = (folder / "model.safetensors").read_bytes()
        with pytest.raises(CheckpointError, match="would be lost"):
            call(*words, "--out", folder)
        assert (folder / "model.safetensors").read_bytes() == before
    for _ in range(2):
        assert "chosen at random (seed 0" in call(*words, "--out", tmp_path / "half")
    assert json.loads((tmp_path / "half" / "prune.json").read_text())["heads"] == [8, 4]
    call("prune", tmp_path / "half", "--prune", "1", "--out", tmp_path / "less")
    assert json.loads((tmp_path / "less" / "prune.json").read_text())["heads"] == [4, 3]
    (tmp_path / "half" / "finetune.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"finetune\.json"):
        call(*words, "--out", tmp_path / "half")
    for command in ("finetune", "export"):
        more = ("--data-dir", trained / "data") if command == "finetune" else ()
        with pytest.raises(CheckpointError, match="the model itself"):
            call(command, trained / "tuned", *more, "--out", trained / "tuned")


def test_a_model_that_is_not_there_is_told_with_what_was_meant(trained, tmp_path):
    """A typo, a hub name, and a run that was not finished."""
    with pytest.raises(CheckpointError, match=r"no such folder .did you mean '.*tuned'"):
        call("inspect", trained / "tunned")
    with pytest.raises(CheckpointError, match="no such folder, and as the name of a model on the hub"):
        call("inspect", "nobody/nothing")
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="not finished"):
        call("inspect", tmp_path / "begun")


def test_the_folder_of_scores_stands_for_its_file(trained):
    """As `score --out` wrote it."""
    words = ("prune", trained / "tuned", "--prune", "50%", "--dry-run", "--json", "--scores")
    assert call(*words, trained / "scores") == call(*words, trained / "scores" / "scores.json")


def test_an_interrupted_command_says_that_it_goes_on(monkeypatch, capsys):
    """And gives back what shells expect."""
    from headprune.cli import main

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("headprune.cli.inspect.load_model", stop)
    monkeypatch.setattr("sys.argv", ["headprune", "inspect", "anything"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_finetuning_under_a_mask_starts_from_the_pruned_model(trained, tmp_path):
    """Budhraja: mask first, then train; and a teacher."""
    heads = hp.find_heads(AutoModelForSequenceClassification.from_pretrained(trained / "model"))
    (tmp_path / "mask.json").write_text(hp.HeadMask.from_dict(heads, {"encoder.0": [0]}).to_json())
    call("finetune", trained / "model", "--data-dir", trained / "data", "--mask", tmp_path / "mask.json", "--epochs", 1,
         "--teacher", trained / "tuned", "--out", tmp_path / "masked", "--json")  # fmt: skip
    assert "encoder.0  ■ · · ·" in call("inspect", tmp_path / "masked")


def test_what_is_missing_is_told(trained, tmp_path, monkeypatch):
    """Data, a budget without an order, a budget without a task, no order."""
    monkeypatch.delenv("HEADPRUNE_DATA", raising=False)
    with pytest.raises(DataError, match="HEADPRUNE_DATA"):
        call("score", trained / "tuned", "--out", tmp_path)
    with pytest.raises(MaskError, match="--scores"):
        call("prune", trained / "tuned", "--max-drop", 1, "--dry-run")
    with pytest.raises(MaskError, match="--task"):
        call("prune", trained / "tuned", "--max-drop", 1, "--scores", trained / "scores" / "scores.json", "--dry-run")
    with pytest.raises(DataError, match="No order"):
        call("curve", trained / "tuned", "--data-dir", trained / "data", "--random", 0, "--out", tmp_path)
    with pytest.raises(HeadpruneError):
        call("score", trained / "tuned", "--task", "nli", "--data-dir", trained / "data", "--out", tmp_path)


def test_two_parts_of_the_data_are_compared(trained, tmp_path):
    """Figure 2 of Michel et al.: the same heads, two data sets, r and rho with p."""
    words = ("ablate", trained / "tuned", "--data-dir", trained / "data", "--against", "train", "--out", tmp_path)
    result = json.loads(call(*words, "--json"))["against"]
    assert result["n"] == 8
    assert result["pearson"] is None or -1 <= result["pearson"] <= 1
    assert result["base"]["examples"] == 200
    assert set(result["scores"]) == {f"encoder.{layer}:{head}" for layer in range(2) for head in range(4)}
    assert (tmp_path / "scatter.html").exists()
    assert "dev and train: " in call(*words)


def test_scores_without_data_are_computed_once(trained, tmp_path):
    """`magnitude` reads no data, whatever the number of batches."""
    call("score", trained / "tuned", "--method", "magnitude", "--data-dir", trained / "data", "--out", tmp_path)
    assert HeadScores.from_json((tmp_path / "scores.json").read_text()).counts == {"encoder.0": 1.0, "encoder.1": 1.0}


def test_unreadable_files_are_told(trained, tmp_path):
    """Scores and masks that are not there."""
    where = ("--data-dir", trained / "data", "--out", tmp_path)
    with pytest.raises(HeadpruneError, match="nowhere"):
        call("curve", trained / "tuned", "--scores", tmp_path / "nowhere.json", *where)
    with pytest.raises(HeadpruneError, match="nowhere"):
        call("finetune", trained / "model", "--mask", tmp_path / "nowhere.json", *where)


def test_ablations_that_differ_are_correlated():
    """Heads that matter alike on both parts give r of one; where nothing changes there is no r."""
    from types import SimpleNamespace

    from headprune.cli.ablate import _compared, _told

    first = SimpleNamespace(rows={i: {"score": score} for i, score in enumerate((0.9, 0.8, 0.5, 0.7))})
    second = SimpleNamespace(rows={i: {"score": 2 * row["score"]} for i, row in first.rows.items()})
    assert _compared(first, second)["pearson"] == pytest.approx(1.0)
    assert "Pearson r 1.00" in _told(_compared(first, second))
    flat = SimpleNamespace(rows={i: {"score": 0.9} for i in range(4)})
    assert _told(_compared(first, flat)) == "no head changes the metric on one of them"


def test_an_interrupted_ablation_and_curve_go_on(trained, tmp_path, monkeypatch):
    """Finished batches and finished points are not computed again; the results are those of an unbroken run."""
    from headprune.scoring import engine
    from headprune.tasks import task

    words = {
        "ablate": ("ablate", trained / "tuned", "--data-dir", trained / "data", "--batch-size", 10, "--json"),
        "curve": ("curve", trained / "tuned", "--data-dir", trained / "data", "--random", 2, "--steps", 4, "--json"),
    }
    whole = {name: call(*w, "--out", tmp_path / f"{name}-whole") for name, w in words.items()}
    places = {"ablate": (engine, "_begin", 3), "curve": (task, "evaluate", 4)}
    for name, (module, function, count) in places.items():
        original, calls = getattr(module, function), []

        def breaking(*args, original=original, calls=calls, count=count, **kwargs):
            calls.append(1)
            if len(calls) == count:
                raise MemoryError("stopped")  # the command line turns Ctrl-C itself into an exit
            return original(*args, **kwargs)

        monkeypatch.setattr(module, function, breaking)
        with pytest.raises(MemoryError, match="stopped"):
            call(*words[name], "--out", tmp_path / name)
        monkeypatch.setattr(module, function, original)
        kept = list((tmp_path / name / "unfinished").iterdir())
        assert len(kept) == count - 1
        assert json.loads(call(*words[name], "--out", tmp_path / name)) == json.loads(whole[name])
        assert not (tmp_path / name / "unfinished").exists()


def test_curves_over_training(trained, tmp_path):
    """One curve per checkpoint, in the order of training (Michel et al., Figure 5)."""
    data = ("--data-dir", trained / "data")
    call("finetune", trained / "model", *data, "--epochs", 3, "--lr", 3e-3, "--batch-size", 20, "--keep-checkpoints",
         "--out", tmp_path / "run", "--json")  # fmt: skip
    folder = tmp_path / "run" / "checkpoints"
    assert len(list(folder.glob("checkpoint-*"))) == 3
    words = ("curve", tmp_path / "run", *data, "--checkpoints", folder, "--steps", 2, "--out", tmp_path / "curves")
    result = json.loads(call(*words, "--json"))
    assert list(result["curves"]) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
    assert all(len(run[0]["points"]) == 3 for run in result["curves"].values())
    assert not (tmp_path / "curves" / "unfinished").exists()
    with pytest.raises(DataError, match="no checkpoints"):
        call("curve", tmp_path / "run", *data, "--checkpoints", tmp_path / "curves", "--out", tmp_path / "c")


def test_scorers_are_compared(trained, tmp_path):
    """A score agrees with itself in full; with another as far as its ranks do."""
    where, first = ("--data-dir", trained / "data"), trained / "scores" / "scores.json"
    call("score", trained / "tuned", "--method", "ablation", *where, "--out", tmp_path / "ablation")
    second = tmp_path / "ablation" / "scores.json"
    told = call(
        "score", trained / "tuned", *where, "--against", first, "--against", second, "--out", tmp_path / "again"
    )
    same, other = json.loads((tmp_path / "again" / "agreement.json").read_text())
    assert same["spearman"] == pytest.approx(1.0)
    assert set(same["overlap"].values()) == {1.0}
    assert -1 <= other["spearman"] < 1
    assert other["with"] == "ablation on sst2 train, 200 examples"
    assert "Spearman 1.00" in told


def test_the_best_single_head_of_each_layer(trained, tmp_path):
    """Chosen on training examples, told on dev (Michel et al., Table 6)."""
    words = ("ablate", trained / "tuned", "--data-dir", trained / "data", "--out", tmp_path, "--choose-on", "train")
    told = call(*words, "--all-but-one", "--choose-examples", 80)
    best = json.loads((tmp_path / "ablation.json").read_text())["best_single"]
    assert (best["examples"], set(best["sites"])) == (80, {"encoder.0", "encoder.1"})
    assert "encoder.1 with only head" in told
    with pytest.raises(DataError, match="--all-but-one"):
        call(*words)


def test_a_curve_of_really_removed_heads_is_that_of_masked_ones(trained, tmp_path):
    """Removal equals masking, point by point; pictures as files for papers."""
    words = ("curve", trained / "tuned", "--data-dir", trained / "data", "--random", 2, "--steps", 4, "--json")
    masked = json.loads(call(*words, "--out", tmp_path / "a", "--picture", "png"))
    removed = json.loads(call(*words, "--out", tmp_path / "b", "--picture", "svg", "--removed"))
    assert removed["removed"]
    assert masked["curves"] == removed["curves"]
    assert (tmp_path / "a" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "b" / "curve.svg").read_text()
    with pytest.raises(HeadpruneError, match="No component called 'decodr'"):
        call(*words, "--out", tmp_path / "c", "--components", "decodr")
    with pytest.raises(DataError, match="no heads in decoder"):
        call(*words, "--out", tmp_path / "c", "--components", "decoder")
    assert CliRunner().invoke(app, ["curve", "m", "--out", str(tmp_path), "--picture", "gif"]).exit_code == 2


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_every_picture_can_be_a_file(kind, tmp_path):
    """Heat map, histogram, curve with band, scatter."""
    from headprune.budgets.curves import Curve, Point
    from headprune.lab.analysis import pictures

    heads = hp.find_heads(AutoModelForSequenceClassification.from_pretrained(write_model(tmp_path / "m")))
    points = [tuple(Point(n, n / 8, 1 - n / 8 + more, {}) for n in range(9)) for more in (0, 0.1)]
    runs = [Curve("random", "accuracy", 8, some) for some in points]
    drawn = {
        "heat": pictures.heat_map(heads, {s.id: [0.1, None, 0.3, 0.4] for s in heads}, title="t", name="n"),
        "bars": pictures.histogram([0.1, 0.2, 0.2], title="t", name="n", reference=0.15),
        "curve": pictures.curve_picture({"random": runs, "other": runs[:1]}, title="t"),
        "scatter": pictures.scatter([1, 2], [3, 4], ["a", "b"], title="t", x="x", y="y"),
    }
    for name, figure in drawn.items():
        assert pictures.write_picture(figure, tmp_path / name, kind).stat().st_size > 1000
