"""`headprune gates` from end to end on a toy task."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import GateError
from tests.command import call
from tests.tasks.toy import write_data, write_model


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("gates")
    data, model = write_data(root / "data"), write_model(root / "model")
    call("finetune", model, "--data-dir", data, "--epochs", 6, "--lr", 3e-3, "--batch-size", 20, "--seed", 0,
         "--out", root / "tuned", "--json")  # fmt: skip
    return root


def words_for(tuned, out, *more):
    where = ("gates", tuned / "tuned", "--data-dir", tuned / "data", "--batch-size", 20, "--lr", 1e-3, "--out", out)
    return (*where, *more, "--epochs", 4, "--json")


def results_of(told):
    return json.loads(told[told.index("[") :])


@pytest.mark.parametrize("gate", ["hard-concrete", "binary-concrete", "exact-k"])
def test_a_number_of_heads_is_kept(gate, tuned, tmp_path):
    """Exactly; the pruned model does what the gated one did, and loads like any other."""
    result = results_of(call(*words_for(tuned, tmp_path, "--keep", "50%", "--gate", gate)))[0]
    assert result["heads"] == [8, 4]
    assert result["dev"]["score"] == result["gated"]["score"] > 0.8
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "keep-0.5" / "model")
    assert len(hp.find_heads(model)) == 4
    assert (tmp_path / "keep-0.5" / "model" / "tokenizer.json").exists()
    assert "gates, keep-0.5" in (tmp_path / "keep-0.5" / "model" / "README.md").read_text()
    assert (tmp_path / "keep-0.5" / "trajectory.html").exists()


def test_a_sweep_over_lambda(tuned, tmp_path):
    """More penalty, fewer heads; a finished one is not trained again; pictures of the papers."""
    words = words_for(tuned, tmp_path, "--lambda", 0.0, "--lambda", 0.5, "--gate-lr", 0.2)
    results = results_of(call(*words))
    kept = {result["objective"]["weight"]: result["heads"][1] for result in results}
    assert kept[0.0] > kept[0.5]
    assert all(result["dev"]["score"] == result["gated"]["score"] for result in results)
    assert {path.name for path in tmp_path.glob("*.html")} == {"components.html", "layers.html", "score.html"}
    assert not (tmp_path / "lambda-0.5" / "checkpoints").exists()
    steps = [entry["step"] for entry in results[0]["trajectory"]]
    assert steps == sorted(set(steps))
    assert len(steps) > 5
    assert results_of(call(*words)) == results
    with pytest.raises(GateError, match="other settings"):
        call(*words_for(tuned, tmp_path, "--lambda", 0.5, "--gate-lr", 0.3))


def test_only_the_gates_train(tuned, tmp_path):
    """The weights of the kept heads are those of the tuned model."""
    call(*words_for(tuned, tmp_path, "--keep", 6, "--train", "gates"))
    before = AutoModelForSequenceClassification.from_pretrained(tuned / "tuned")
    after = AutoModelForSequenceClassification.from_pretrained(tmp_path / "keep-6" / "model")
    assert after.bert.embeddings.word_embeddings.weight.equal(before.bert.embeddings.word_embeddings.weight)
    assert len(hp.find_heads(after)) == 6


def test_controls_from_scratch(tuned, tmp_path):
    """Voita et al., Table 2 and footnote 8: the gated objective, and a fixed mask, from random weights."""
    result = results_of(call(*words_for(tuned, tmp_path / "gated", "--lambda", 0.01, "--from-scratch")))[0]
    assert 0.3 < result["before"]["score"] < 0.7
    heads = hp.find_heads(AutoModelForSequenceClassification.from_pretrained(tuned / "tuned"))
    (tmp_path / "mask.json").write_text(hp.HeadMask.from_dict(heads, {"encoder.0": [1]}).to_json())
    told = call("finetune", tuned / "tuned", "--data-dir", tuned / "data", "--from-scratch", "--mask",
                tmp_path / "mask.json", "--epochs", 1, "--out", tmp_path / "fixed", "--json")  # fmt: skip
    assert "score" in told
    fixed = AutoModelForSequenceClassification.from_pretrained(tmp_path / "fixed")
    assert hp.find_heads(fixed)["encoder.0"].kept == (1,)


def test_what_is_impossible_is_told(tuned, tmp_path):
    """Nothing asked for, a negative lambda, more heads than there are."""
    with pytest.raises(GateError, match="Say how much"):
        call(*words_for(tuned, tmp_path))
    with pytest.raises(GateError, match="lambda is -1"):
        call(*words_for(tuned, tmp_path, "--lambda", -1))
    with pytest.raises(hp.HeadpruneError):
        call(*words_for(tuned, tmp_path, "--keep", 99))


def test_a_result_is_not_served_for_other_data(tmp_path):
    """Another data folder, metric or batch size is another run; so is a count that looks like a share."""
    one, other = write_data(tmp_path / "one", 40, 20), write_data(tmp_path / "other", 40, 30)
    model = write_model(tmp_path / "model")
    words = ("gates", model, "--epochs", 1, "--batch-size", 20, "--out", tmp_path / "out", "--json")
    call(*words, "--data-dir", one, "--keep", 4)
    with pytest.raises(GateError, match="other settings"):
        call(*words, "--data-dir", other, "--keep", 4)
    call(*words, "--data-dir", one, "--keep", 1, "--keep", "100%")
    kept = {path.parent.name: json.loads(path.read_text())["result"]["heads"][1]
            for path in (tmp_path / "out").glob("keep-*/gates.json")}  # fmt: skip
    assert kept == {"keep-4": 4, "keep-1": 1, "keep-1.0": 8}
