"""Ways in which scoring, repairs, budgets and exports once went wrong."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from datasets import Dataset
from tools.families import build_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultipleChoice,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartForSequenceClassification,
    BertForMultipleChoice,
)
from typer.testing import CliRunner

import headprune as hp
from headprune.budgets.allocation import within
from headprune.budgets.costs import mask_for_budget, mask_for_speedup
from headprune.cli.app import app
from headprune.cost.measurement import sized_example
from headprune.errors import BudgetError, DataError, HeadpruneError, MaskError, UnknownNameError, UnsupportedModelError
from headprune.heads import HeadScores
from headprune.recovery import SearchConfig
from headprune.registry import check_options
from headprune.scoring.moments import site_calls
from headprune.structure.example import example_inputs
from tests.families.tiny import tiny_config, tiny_model

SCORES = ("sensitivity", "fisher-block", "ablation", "curvature", "residual", "reconstruction", "output-norm")


def labelled(model, rows=2, length=7):
    batch = example_inputs(model, batch=rows, length=length)
    return {**batch, "labels": torch.arange(rows) % 2}


def half(heads, seed=0):
    return hp.HeadMask.random(heads, keep=0.5, seed=seed, unit="group")


def test_a_uniform_speedup_of_unequal_sites_is_refused():
    """Before anything is timed; it once answered with a mask without heads."""
    model = tiny_model("bert")
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1"))
    heads = hp.find_heads(model)
    scores = hp.score(model, method="random", heads=heads)
    with pytest.raises(MaskError, match=r"encoder\.0 has 3, encoder\.1 4"):
        mask_for_speedup(model, scores, heads, 1.001, uniform=True, repeats=3)
    with pytest.raises(BudgetError, match="cannot be met"):
        mask_for_budget(model, scores, heads, "parameters", 0.01)


def test_a_budget_loses_the_least_scores_also_far_from_zero():
    """Where one site's units cost more, it may be cheaper to lose one of these than several others."""
    heads = hp.find_heads(tiny_model("bert"))
    rows = {"encoder.0": [1.0] * 4, "encoder.1": [3.0] * 4}
    scores = HeadScores.from_values(heads, rows, method="curvature", comparable=True)
    costs = {"encoder.0": [0, 1, 2, 3, 4], "encoder.1": [0, 4, 8, 12, 16]}
    assert within(scores, heads, costs, 16.0).to_dict() == {"encoder.0": [0, 1, 2, 3], "encoder.1": [0, 1, 2]}


def test_ablations_of_batches_of_any_length_add_up():
    """How much was reused differs from batch to batch, and is no option."""
    model = tiny_model("bert")
    parts = [hp.score(model, [labelled(model, length=length)], method="ablation") for length in (7, 20)]
    merged = parts[0] + parts[1]
    shares = [scores.options["share_reused"] for scores in parts]
    assert shares[0] != shares[1]
    assert merged.options["share_reused"] == pytest.approx(sum(shares) / 2, abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "vit", "t5", "bart"])
def test_models_in_bfloat16_have_a_loss_that_is_known(family):
    """Some compute it in bfloat16 themselves, with an error that is no other loss."""
    for seed in range(4):
        model = tiny_model(family, seed=seed).to(torch.bfloat16)
        batch = example_inputs(model)
        rows = len(next(iter(batch.values())))
        batch["labels"] = batch["decoder_input_ids"] if "decoder_input_ids" in batch else torch.arange(rows) % 2
        batch = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in batch.items()}
        assert len(hp.search(model, [batch], prune=0.5)) == len(hp.find_heads(model)) // 2


def test_a_repair_of_neurons_alone_can_be_pruned():
    """Whichever map was given: what counts is which sites lose what."""
    model = tiny_model("bert")
    both = hp.find_heads(model, neurons=True)
    for mask, map_ in ((half(both.neurons), both.neurons), (half(both.attention), both)):
        pruned = copy.deepcopy(model)
        hp.recover_(pruned, mask, [labelled(model)], heads=map_)
        other = half(both.neurons if map_ is both.neurons else both.attention, seed=5)
        with pytest.raises(MaskError, match="for another mask"):
            hp.prune_(pruned, other)
        hp.prune_(pruned, mask)
        assert len(hp.find_heads(pruned, neurons=True)) < len(both)


@pytest.mark.parametrize("format_", ["plain", "standalone", "onnx"])
def test_a_model_between_repair_and_pruning_is_not_exported(format_, tmp_path):
    """As `save_pretrained` refuses it: it is neither the one nor the other."""
    model = tiny_model("llama")
    hp.recover_(model, half(hp.find_heads(model)), [example_inputs(model)])
    with pytest.raises(UnsupportedModelError, match="prune_ it with the mask"):
        hp.export(model, tmp_path / "out", format=format_)
    with pytest.raises(UnsupportedModelError, match="prune_ it with the mask"):
        hp.search(model, [example_inputs(model)], prune=0.5)
    assert not (tmp_path / "out").exists()


def pictures_and_text():
    """A model that reads both, a batch with pictures, and one of text alone."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(build_model.tiny_config("llava"))
    build_model.enlarge_(model, 0)
    seen = example_inputs(model)
    text = {"input_ids": torch.randint(1, 30, seen["input_ids"].shape), "attention_mask": seen["attention_mask"]}
    return model.eval(), *({**batch, "labels": batch["input_ids"]} for batch in (seen, text))


@pytest.mark.parametrize("method", [*SCORES, "confidence"])
def test_batches_need_not_reach_every_part_of_a_model(method):
    """Scores are those of the batches that do, in whatever order they come."""
    model, seen, text = pictures_and_text()
    found = [hp.score(model, order, method=method) for order in ([seen, text], [text, seen])]
    for site, row in found[0].scores.items():
        assert row == pytest.approx(found[1].scores[site], rel=1e-4, abs=1e-9)
    if method in ("output-norm", "confidence"):
        with pytest.raises(HeadpruneError, match=r"vision\.encoder\.0.*reache"):
            hp.score(model, [text], method=method)


def test_repairs_go_in_the_order_of_the_model_whichever_batch_comes_first():
    """A text alone would put the part for pictures last."""
    model, seen, text = pictures_and_text()
    heads = hp.find_heads(model)
    order = [site.id for site in heads]
    repaired = []
    for batches in ([seen, text], [text, seen]):
        job = hp.scoring.context.ScoringContext(
            model=model, heads=heads, batches=batches, loss=hp.scoring.losses.ExampleLoss("mean")
        )
        assert list(site_calls(job, list(heads), batches)) == order
        repaired.append(hp.recover_(copy.deepcopy(model), half(heads), batches))
    for one, other in zip(repaired[0].parameters(), repaired[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_tokens_that_go_to_experts_are_of_no_example():
    """Neurons of experts are repaired and scored all the same, from all rows that come by."""
    sizes = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2}
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(build_model.tiny_config("switch_transformers", **sizes)).eval()
    build_model.enlarge_(model, 0)
    neurons = hp.find_heads(model, neurons=True).neurons
    assert any("expert" in site.output for site in neurons)
    batches = [example_inputs(model, batch=3, length=7, seed=seed) for seed in range(3)]
    batches = [{**batch, "labels": batch["decoder_input_ids"]} for batch in batches]
    for method in ("output-norm", "curvature", "residual", "reconstruction"):
        scores = hp.score(model, batches, heads=neurons, method=method)
        assert all(len(row) == neurons[site].num_heads for site, row in scores.scores.items())
    hp.recover_(model, hp.HeadMask.random(neurons, keep=0.5, seed=0), batches)


def test_pictures_of_all_examples_in_one_row():
    """Three texts and two pictures: repairs take all rows; where examples must be told apart, that is said."""
    built = build_model.build("qwen2_vl")
    batch = dict(built.batch)
    plain = torch.where(batch["input_ids"][:1] == built.model.config.image_token_id, 1, batch["input_ids"][:1])
    batch["input_ids"] = torch.cat([batch["input_ids"], plain])
    batch["attention_mask"] = torch.cat([batch["attention_mask"], batch["attention_mask"][:1]])
    batch["mm_token_type_ids"] = torch.cat([batch["mm_token_type_ids"], torch.zeros_like(plain)])
    batch["labels"] = batch["input_ids"]
    heads = hp.find_heads(built.model, built.batch)
    assert hp.score(built.model, [batch], heads=heads, method="output-norm").scores
    with pytest.raises(DataError, match=r"'pixel_values' has 8 rows for 3 examples.*batches of one example"):
        hp.score(built.model, [batch], heads=heads, method="residual")
    hp.recover_(built.model, half(heads), [batch], heads=heads)


def test_padding_is_no_data_where_a_decoder_classifies_or_examples_have_choices():
    """What stands at masked positions changes no score."""
    bart = BartForSequenceClassification(tiny_config("bart", num_labels=2)).eval()
    tokens = torch.randint(4, 30, (2, 9))
    tokens[:, 5:], tokens[:, 4] = 7, 2  # one end of sequence each, where the classifier looks
    mask = torch.ones_like(tokens)
    mask[:, 5:] = 0
    other = tokens.clone()
    other[:, 5:] = 11
    choices = BertForMultipleChoice(tiny_config("bert")).eval()
    texts = torch.randint(4, 30, (2, 3, 6))
    shown = torch.ones_like(texts)
    shown[..., 4:] = 0
    changed = texts.clone()
    changed[..., 4:] = 9
    for model, pair, attention in ((bart, (tokens, other), mask), (choices, (texts, changed), shown)):
        batches = [{"input_ids": x, "attention_mask": attention, "labels": torch.tensor([0, 1])} for x in pair]
        rows = [
            hp.score(model, [batch], method=name) for name in ("reconstruction", "output-norm") for batch in batches
        ]
        for one, two in ((rows[0], rows[1]), (rows[2], rows[3])):
            for site in one.scores:
                assert one.scores[site] == pytest.approx(two.scores[site], rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("family", ["falcon", "mpt", "bert"])
def test_a_layer_without_attention_still_has_neurons(family):
    """They are found, pruned and saved as those of the other layers."""
    model = tiny_model(family).eval()
    first = hp.find_heads(model).heads()[0].site
    hp.prune_(model, hp.HeadMask.full(hp.find_heads(model)).without(first))
    both = hp.find_heads(model, neurons=True)
    assert [site.id for site in both.neurons] == ["neurons.0", "neurons.1"]
    hp.prune_(model, half(both.neurons))
    assert len(hp.find_heads(model, neurons=True).neurons) == len(both.neurons) // 2


@pytest.mark.parametrize("family", ["clip", "siglip", "mpt", "roberta", "bert", "gpt2", "bart"])
def test_a_length_is_cut_to_what_the_model_takes(family):
    """To all of it: the part for text may say it, and RoBERTa counts from the padding on."""
    model = tiny_model(family)
    longest = {"roberta": 63}.get(family, 64)
    assert sized_example(model, 1, 10_000)["input_ids"].shape == (1, longest)
    assert hp.measure(model, length=10_000, repeats=0).length == longest


def test_scoring_works_in_inference_mode():
    """And on batches that were made in it."""
    model = tiny_model("bert")
    expected = hp.score(model, [labelled(model)]).scores
    with torch.inference_mode():
        batch = labelled(model)
        assert hp.score(model, [batch]).scores == expected
        assert len(hp.search(model, [batch], prune=0.5)) == 4
    assert hp.score(model, [batch]).scores == expected


def test_likely_mistakes_are_told():
    """What was found, and what to do; nothing of the machinery below."""
    model = tiny_model("bert")
    batch = labelled(model)
    lists = Dataset.from_dict({"input_ids": [[1, 2, 3]] * 4, "labels": [0, 1, 0, 1]})
    for data, told in (
        (batch, r"Put it into a list"),
        (Dataset.from_dict({"input_ids": []}), "no batch"),
        ([{"input_ids": [1, 2, 3], "labels": 0}], "looks like one example"),
        (lists, "with a collator"),
    ):
        with pytest.raises(DataError, match=told):
            hp.score(model, data)
    for act in (
        lambda: hp.score(model, [batch], method="curvature", rigde=1.0),
        lambda: hp.recover_(model, half(hp.find_heads(model)), [batch], rigde=1.0),
        lambda: hp.search(model, [batch], prune=0.5, way=SearchConfig(options={"rigde": 1.0})),
    ):
        with pytest.raises(UnknownNameError, match="Did you mean 'ridge'"):
            act()
    check_options("A scorer of one's own", lambda job, power=1: job, ["power"])
    with pytest.raises(UnknownNameError, match="Did you mean 'power'"):
        check_options("A scorer of one's own", lambda job, power=1: job, ["pwoer"])
    with pytest.raises(MaskError, match="expected a Way"):
        hp.search(model, [batch], prune=0.5, way="best")
    dead = copy.deepcopy(model)
    for parameter in dead.bert.encoder.layer[0].attention.self.value.parameters():
        torch.nn.init.zeros_(parameter)
    with pytest.raises(DataError, match="larger ridge"):
        hp.score(dead, [batch], method="residual", ridge=0.0)
    hp.prune_(dead, hp.HeadMask.empty(hp.find_heads(dead)))
    with pytest.raises(UnsupportedModelError, match="no heads left"):
        hp.score(dead, [batch])
    with pytest.raises(UnsupportedModelError, match="meta device"):
        hp.score(copy.deepcopy(model).to("meta"), [batch], heads=hp.find_heads(model))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pattern", "top:1", "--at-least", "1"], "--at-least has no effect with --pattern"),
        (["--heads", "encoder.0:1", "--unit", "group"], "--unit has no effect with --heads"),
        (["--macs", "80%", "--method", "random", "--per", "site"], "--per has no effect with --macs"),
        (["--prune", "50%", "--unit", "foo"], "No --unit called 'foo'"),
        (["--prune", "50%", "--per", "bar"], "No --per called 'bar'"),
        (["--prune", "50%", "--recover", "least-sqares"], "Did you mean 'least-squares'"),
        (["--prune", "50%", "--at-least", "-5"], "--at-least is -5; expected 0 or more"),
        (["--macs", "80%", "--method", "random", "--length", "0"], "--length is 0; expected 1 or more"),
        (["--max-drop", "-1", "--method", "random"], "--max-drop is -1.0; expected 0 or more"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, told):
    """Before the model is loaded: there is none."""
    found = CliRunner().invoke(app, ["prune", "no-such-model", "--dry-run", *options])
    assert isinstance(found.exception, HeadpruneError | SystemExit)
    assert told in " ".join((found.output + str(found.exception)).split())


def test_the_macs_that_are_told_are_those_that_were_asked_for(tmp_path):
    """At --length, not on a small batch."""
    model = tiny_model("llama", auto=AutoModelForCausalLM)
    model.save_pretrained(tmp_path / "model")
    options = ["--macs", "85%", "--length", "60", "--scores", str(tmp_path / "scores.json"), "--dry-run", "--json"]
    scores = hp.score(model, method="random", heads=hp.find_heads(model))
    (tmp_path / "scores.json").write_text(scores.to_json())
    found = CliRunner().invoke(app, ["prune", str(tmp_path / "model"), "--unit", "group", *options])
    before, after = json.loads(found.output)["macs"]
    example = sized_example(model, 1, 60)
    assert before == hp.measure(model, example=example, repeats=0).macs.total
    assert after <= 0.85 * before


def test_an_onnx_file_in_8_bits_is_never_that_of_another_model(tmp_path):
    """Exported without int8, an older one goes; labels of an example are no input of the file."""
    onnx = pytest.importorskip("onnxruntime")
    model = tiny_model("bert")
    hp.export(model, tmp_path, format="onnx", int8=True)
    assert (tmp_path / "model.int8.onnx").exists()
    hp.export(model, tmp_path, format="onnx", example=labelled(model))
    assert not (tmp_path / "model.int8.onnx").exists()
    session = onnx.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    assert "labels" not in {node.name for node in session.get_inputs()}


def test_a_standalone_folder_becomes_a_plain_one(tmp_path):
    """Without the code that it was loaded with."""
    model = tiny_model("llama", auto=AutoModelForCausalLM)
    mask = hp.HeadMask.full(hp.find_heads(model)).without("decoder.0:0", "decoder.0:1", "decoder.1:0", "decoder.1:1")
    hp.export(hp.prune_(model, mask), tmp_path / "standalone", format="standalone")
    for trusted in (False, True):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "standalone", trust_remote_code=trusted)
        folder = hp.export(loaded, tmp_path / f"plain-{trusted}", format="plain")
        assert "auto_map" not in json.loads((folder / "config.json").read_text())
        assert not list(folder.glob("*.py"))


def test_a_skipped_site_without_heads_is_only_refused_after_a_repair_if_there_is_one():
    """`empty_site="skip"` drops biases, where a site is emptied; elsewhere it means nothing."""
    model = tiny_model("bert")
    some = half(hp.find_heads(model))
    emptied = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0")
    for mask in (some, emptied):
        repaired = copy.deepcopy(model)
        hp.recover_(repaired, mask, [labelled(model)])
        if mask is emptied:
            with pytest.raises(MaskError, match="empty_site='skip' drops them"):
                hp.prune_(repaired, mask, empty_site="skip")
        else:
            hp.prune_(repaired, mask, empty_site="skip")
    hp.prune_(model, emptied)  # what was emptied before is not emptied again
    rest = hp.HeadMask.full(hp.find_heads(model)).without("encoder.1:0")
    hp.recover_(model, rest, [labelled(model)])
    hp.prune_(model, rest, empty_site="skip")
    assert len(hp.find_heads(model)) == 3


@pytest.mark.parametrize(
    ("family", "auto"),
    [
        ("bart", AutoModelForSequenceClassification),  # the decoder reads the input again; the answer is where it ends
        ("t5", AutoModelForSequenceClassification),
        ("mbart", AutoModelForSequenceClassification),
        ("bert", AutoModelForMultipleChoice),  # several texts an example
    ],
)
def test_what_these_tasks_read_is_made_from_the_config(family, auto, tmp_path):
    """So that no example is needed to find heads and to prune them."""
    model = tiny_model(family, auto=auto)
    heads = hp.find_heads(model)
    hp.prune_(model, half(heads))
    model.save_pretrained(tmp_path)
    assert len(hp.find_heads(type(model).from_pretrained(tmp_path))) == len(hp.find_heads(model)) < len(heads)
