"""`headprune ablate`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from transformers import GPT2Config

from headprune.errors import DataError, FileFormatError
from headprune.heads import HeadId
from headprune.jobs.ablate import Ablated, compared
from headprune.tasks.ablations import HeadChange, MetricAblation
from headprune.tasks.metrics import metrics
from headprune.tasks.task import Evaluation
from tests.command import call
from tests.tasks.toy import tokenizer, write_data


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


def test_ablations_that_differ_are_correlated():
    """Heads that matter alike on both parts give r of one; where nothing changes there is no r."""
    first = ablation(0.9, 0.8, 0.5, 0.7)
    alike = compared(first, ablation(1.8, 1.6, 1.0, 1.4), "train")
    assert alike.pearson == pytest.approx(1.0)
    assert "Pearson r 1.00" in alike.message()
    assert (
        compared(first, ablation(0.9, 0.9, 0.9, 0.9), "train").message() == "no head changes the metric on one of them"
    )


def ablation(*scores: float) -> MetricAblation:
    """Of one site with these scores."""
    nothing = {"change": 0.0, "p": 1.0, "p_exact": 1.0, "flipped": 0.0, "p_holm": 1.0, "p_bh": 1.0}
    rows = {HeadId("encoder.0", head): HeadChange(score=score, **nothing) for head, score in enumerate(scores)}
    base = Evaluation(metrics["accuracy"], 1.0, np.ones((4, 2)), np.ones(4))
    return MetricAblation(base, rows, 0.0)


def test_a_stored_ablation_is_read_or_the_wrong_field_is_told(trained, tmp_path):
    """The values come back as they were; a field of another kind is told by its name."""
    stored = json.loads(call("ablate", trained / "tuned", "--data-dir", trained / "data", "--out", tmp_path, "--json"))
    assert Ablated.from_dict(stored).to_dict() == stored
    stored["heads"]["encoder.0:1"]["score"] = "much"
    with pytest.raises(FileFormatError, match=r"heads\.encoder\.0:1\.score is 'much'; expected a number"):
        Ablated.from_dict(stored)


def test_an_interrupted_ablation_and_curve_go_on(trained, tmp_path, monkeypatch):
    """Finished batches and finished points are not computed again; the results are those of an unbroken run."""
    from headprune.jobs import curve
    from headprune.scoring import ablation_engine

    words = {
        "ablate": ("ablate", trained / "tuned", "--data-dir", trained / "data", "--batch-size", 10, "--json"),
        "curve": ("curve", trained / "tuned", "--data-dir", trained / "data", "--random", 2, "--steps", 4, "--json"),
    }
    whole = {name: call(*w, "--out", tmp_path / f"{name}-whole") for name, w in words.items()}
    places = {"ablate": (ablation_engine, "_begin", 3), "curve": (curve, "evaluate", 4)}
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


def test_the_best_single_head_of_each_layer(trained, tmp_path):
    """Chosen on training examples, told on dev (Michel et al., Table 6)."""
    words = ("ablate", trained / "tuned", "--data-dir", trained / "data", "--out", tmp_path, "--choose-on", "train")
    told = call(*words, "--all-but-one", "--choose-examples", 80)
    best = json.loads((tmp_path / "ablation.json").read_text())["best_single"]
    assert (best["examples"], set(best["sites"])) == (80, {"encoder.0", "encoder.1"})
    assert "encoder.1 with only head" in told
    heads = json.loads((tmp_path / "ablation.json").read_text())["heads"]  # on dev only the chosen ones are tried
    assert set(heads) == {f"{site}:{row['head']}" for site, row in best["sites"].items()}
    assert best["chosen"]["encoder.0"]["score"] == best["chosen"]["encoder.0"]["chosen_score"]
    assert best["significant"]["p"] <= 2
    with pytest.raises(DataError, match="--all-but-one"):
        call(*words)


def test_choosing_and_telling_on_the_same_part_is_one_ablation(trained, tmp_path):
    """Every head is tried once, and what was chosen is what is told (Michel et al., Table 3)."""
    words = ("ablate", trained / "tuned", "--data-dir", trained / "data", "--out", tmp_path, "--all-but-one")
    call(*words, "--choose-on", "dev", "--choose-examples", 0)
    result = json.loads((tmp_path / "ablation.json").read_text())
    assert len(result["heads"]) == 8
    assert result["best_single"]["sites"] == result["best_single"]["chosen"]


def test_a_stored_ablation_takes_the_place_of_a_second_one(trained, tmp_path):
    """Figure 2 from two runs is Figure 2 from one; one of other heads is refused."""
    words = ("ablate", trained / "tuned", "--data-dir", trained / "data")
    call(*words, "--against", "train", "--out", tmp_path / "both")
    call(*words, "--split", "train", "--out", tmp_path / "train")
    known = tmp_path / "train" / "ablation.json"
    call(*words, "--compare-with", known, "--out", tmp_path / "one")
    both, one = (json.loads((tmp_path / name / "ablation.json").read_text())["against"] for name in ("both", "one"))
    assert one["pearson"] == pytest.approx(both["pearson"])
    assert (one["split"], one["scores"]) == ("train", both["scores"])
    content = json.loads(known.read_text())
    content["heads"].popitem()
    known.write_text(json.dumps(content))
    with pytest.raises(DataError, match="lacks"):
        call(*words, "--compare-with", known, "--out", tmp_path / "two")
    with pytest.raises(DataError, match="instead of --against"):
        call(*words, "--compare-with", known, "--against", "train", "--out", tmp_path / "three")


def test_a_decoder_without_padding_is_evaluated_in_batches(tmp_path):
    """The tokenizer's padding becomes the model's."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=23, n_embd=32, n_layer=2, n_head=4, n_positions=64, num_labels=2, bos_token_id=2,
                        eos_token_id=3)  # fmt: skip
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    data = write_data(tmp_path / "data", 20, 12)
    words = ("ablate", tmp_path / "model", "--data-dir", data, "--out", tmp_path / "out", "--json")
    whole, single = (json.loads(call(*words, "--batch-size", size)) for size in (12, 1))
    assert whole["base"]["examples"] == 12
    assert whole["heads"] == single["heads"]  # padding changes nothing
