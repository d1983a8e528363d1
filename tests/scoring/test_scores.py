"""Scores: formulas by hand, finite differences, batch size one, merging, other tasks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM, AutoModelForQuestionAnswering, AutoModelForTokenClassification

import headprune as hp
from headprune.errors import DataError, HeadpruneError, UnknownNameError, UnsupportedModelError
from headprune.scoring import scorers
from headprune.structure.example import example_inputs
from tests.families.tiny import DECODERS, SEQ2SEQ, tiny_model


def labelled(model, family, seed=0):
    """A batch with labels, padded where there are tokens."""
    batch = example_inputs(model, seed=seed)
    if "attention_mask" in batch:
        batch["attention_mask"][1, 5:] = 0
    if family in SEQ2SEQ:
        batch["labels"] = batch.pop("decoder_input_ids")
        batch["labels"][1, 3:] = -100
    elif family in DECODERS:
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    else:
        batch["labels"] = torch.tensor([0, 1])
    return batch


def rows(scores):
    return torch.tensor([x for row in scores.scores.values() for x in row], dtype=torch.float64)


def singles(batch):
    return [{k: v[i : i + 1] for k, v in batch.items()} for i in range(2)]


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "bart", "vit", "swin"])
@pytest.mark.parametrize("method", ["sensitivity", "fisher"])
def test_a_batch_scores_as_its_examples_one_by_one(family, method):
    """Per-example masks make the batch size irrelevant; Swin goes example by example by itself."""
    model = tiny_model(family)
    batch = labelled(model, family)
    together, alone = hp.score(model, [batch], method=method), hp.score(model, singles(batch), method=method)
    assert torch.allclose(rows(together), rows(alone), atol=1e-6)
    assert together.counts == alone.counts
    for site, errors in together.standard_errors.items():
        assert errors == pytest.approx(alone.standard_errors[site], abs=1e-6)


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_sensitivity_is_the_slope_of_the_loss(family):
    """Equal to finite differences of the loss in the mask, at every head."""
    model = tiny_model(family)
    batch = singles(labelled(model, family))[1]
    found = hp.score(model, [batch], method="sensitivity").scores
    heads, step = hp.find_heads(model), 2e-3

    def loss(site, head, value):
        weights = torch.ones(heads[site].num_heads)
        weights[head] = value
        with torch.no_grad(), hp.masked(model, {site: weights}):
            return float(model(**batch).loss)

    for site, row in found.items():
        for head, value in enumerate(row):
            slope = (loss(site, head, 1 + step) - loss(site, head, 1 - step)) / (2 * step)
            assert value == pytest.approx(abs(slope), rel=1e-2, abs=5e-4)


class ToyAttention(nn.Module):
    """One site of two heads of width one whose output is read at each position by hand."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(2, 2, bias=False) for _ in range(4))
        for linear in (self.q, self.k):
            nn.init.normal_(linear.weight, std=0.3)
        nn.init.eye_(self.v.weight)
        nn.init.eye_(self.o.weight)

    def forward(self, x, labels=None):
        split = [f(x).unflatten(-1, (2, 1)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        context = F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        return self.o(context)


def test_the_three_reductions_on_a_case_solved_by_hand():
    """With signs that cancel within an example (token) or between examples (batch)."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.block = ToyAttention()
    model.forward = lambda x, signs=None, labels=None: model.block(x)
    # Two examples of two equal positions each: attention to equal tokens returns the token whatever the weights.
    x = torch.tensor([[[1.0, 2.0], [1.0, 2.0]], [[3.0, 1.0], [3.0, 1.0]]])
    signs = torch.tensor([[1.0, -0.5], [-1.0, 0.25]])  # how the loss reads each position

    def loss(outputs, batch):
        return (outputs.sum(-1) * batch["signs"]).sum(1)

    heads = hp.find_heads(model, example={"x": torch.randn(2, 3, 2)})
    assert [(s.id, s.num_heads) for s in heads] == [("encoder.0", 2)]

    def score(reduction):
        return hp.score(model, [{"x": x, "signs": signs, "labels": signs}], loss=loss, heads=heads, reduction=reduction)

    # dL/dξ of an example: sum over positions of value x sign.
    assert rows(score("example")).tolist() == pytest.approx([(0.5 + 2.25) / 2, (1.0 + 0.75) / 2])
    # The code's: |value x sign| at each of 4 positions, of the mean loss (half of the sum).
    assert rows(score("token")).tolist() == pytest.approx([(1.5 + 3.75) / 2 / 4, (3.0 + 1.25) / 2 / 4])
    # The port's: the gradient of the batch's mean loss.
    assert rows(score("batch")).tolist() == pytest.approx([abs(0.5 - 2.25) / 2, abs(1.0 - 0.75) / 2])
    with pytest.raises(UnknownNameError, match="reduction"):
        score("exmple")


@pytest.mark.parametrize(
    "family", ["bert", "mpnet", "vit", "gpt2", "llama", "qwen3", "opt", "t5", "bart", "marian", "whisper", "m2m_100"]
)
@pytest.mark.parametrize("method", ["ablation", "all-but-one"])
def test_the_ablation_engine_equals_the_plain_way(family, method):
    """Bit for bit, with reuse active."""
    model = tiny_model(family)
    batch = labelled(model, family)
    quick = hp.score(model, [batch, labelled(model, family, seed=2)], method=method)
    plain = hp.score(model, [batch, labelled(model, family, seed=2)], method=method, reuse=False)
    assert quick.scores == plain.scores
    assert quick.options["share_reused"] > 0.3
    assert plain.options["share_reused"] == 0.0


def test_reuse_is_dropped_where_it_is_not_valid():
    """A model that changes its own cached tensors in place is run as a whole."""

    class InPlace(ToyAttention):
        def forward(self, x, labels=None):
            value = self.v(x)
            split = [f(x).unflatten(-1, (2, 1)).transpose(1, 2) for f in (self.q, self.k)]
            context = F.scaled_dot_product_attention(*split, value.unflatten(-1, (2, 1)).transpose(1, 2))
            output = self.o(context.transpose(1, 2).flatten(2))
            if not torch.is_grad_enabled():
                value.mul_(2.0)  # poisons what was recorded
            return output + value

    torch.manual_seed(0)
    model = nn.Sequential()
    model.block = InPlace()
    model.forward = lambda x, labels=None: model.block(x)
    batch = {"x": torch.randn(3, 4, 2), "labels": torch.zeros(3)}
    heads = hp.find_heads(model, example={"x": torch.randn(2, 3, 2)})
    found = [
        hp.score(model, [batch], method="ablation", heads=heads, loss=lambda o, b: o.sum((1, 2)), reuse=reuse)
        for reuse in (True, False)
    ]
    assert found[0].scores == found[1].scores
    assert found[0].options["share_reused"] == 0.0


def test_ablation_is_the_rise_of_the_loss():
    """Masked minus base for a loss; all-but-one is base minus masked: larger is better in both."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    heads = hp.find_heads(model)

    def loss(mask):
        with torch.no_grad(), hp.masked(model, mask):
            return float(model(**batch).loss)

    full = hp.HeadMask.full(heads)
    scores = hp.score(model, [batch], method="ablation")
    assert scores["encoder.1:2"] == pytest.approx(loss(full.without("encoder.1:2")) - loss(full), abs=1e-6)
    alone = hp.score(model, [batch], method="all-but-one")
    only = full.without("encoder.1:0", "encoder.1:1", "encoder.1:3")
    assert alone["encoder.1:2"] == pytest.approx(loss(full) - loss(only), abs=1e-6)


def test_groups_are_ablated_together():
    """A group's score is what the loss does without the group (or with it alone), one pass for each group."""
    model = tiny_model("llama")
    batch = singles(labelled(model, "llama"))[0]  # of several, the model's own loss weighs long examples more
    heads = hp.find_heads(model)
    full, groups = hp.HeadMask.full(heads), heads["decoder.1"].groups
    assert max(map(len, groups)) > 1

    def loss(mask):
        with torch.no_grad(), hp.masked(model, mask):
            return float(model(**batch).loss)

    first, rest = ([f"decoder.1:{h}" for h in part] for part in (groups[0], sum(groups[1:], ())))
    passes = []
    handle = model.lm_head.register_forward_hook(lambda *_: passes.append(1))
    for method, expected in (
        ("ablation", loss(full.without(*first)) - loss(full)),
        ("all-but-one", loss(full) - loss(full.without(*rest))),
    ):
        passes.clear()
        scores = hp.score(model, [batch], method=method, unit="group", heads=heads)
        taken = len(passes)
        assert sum(scores[head] for head in first) == pytest.approx(expected, abs=1e-6)
        assert len({scores[head] for head in first}) == 1
        passes.clear()
        hp.score(model, [batch], method=method, heads=heads)
        assert len(passes) - taken == len(heads) - sum(len(site.groups) for site in heads)
    handle.remove()


@pytest.mark.parametrize("method", ["sensitivity", "fisher", "ablation", "output-norm", "confidence", "entropy"])
def test_scores_of_parts_add_up(method):
    """Two passes, or two workers, and their merge."""
    model = tiny_model("bert")
    parts = [labelled(model, "bert", seed=s) for s in (1, 2, 3)]
    whole = hp.score(model, parts, method=method)
    merged = hp.score(model, parts[:1], method=method) + hp.score(model, parts[1:], method=method)
    assert torch.allclose(rows(merged), rows(whole), atol=1e-12)
    assert merged.counts == whole.counts == dict.fromkeys(whole.counts, 6.0)


def test_output_norm_by_hand():
    """The length of the head's slice through its columns, averaged over real positions."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    site = hp.find_heads(model)["encoder.0"]
    dense, seen = model.get_submodule(site.output), []
    handle = dense.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    with torch.no_grad():
        model(**batch)
    handle.remove()
    written = seen[0][..., 8:16] @ dense.weight[:, 8:16].T
    lengths = written.norm(dim=-1)
    expected = (lengths[0].mean() + lengths[1, :5].mean()).item() / 2
    assert hp.score(model, [batch], method="output-norm")["encoder.0:1"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "siglip", "mpnet", "gpt_oss", "swin"])
def test_attention_scores_equal_those_of_the_reported_maps(family):
    """Entropy is at most log of the keys; confidence is at least one over the keys. Nothing stays switched."""
    model = tiny_model(family)
    batch = example_inputs(model) if family == "siglip" else labelled(model, family)
    before = model.config._attn_implementation
    confidence = rows(hp.score(model, [batch], method="confidence", exclude_end=False))
    entropy = rows(hp.score(model, [batch], method="entropy"))
    assert ((confidence > 0) & (confidence <= 1)).all()
    assert (entropy <= 1e-6).all()
    assert model.config._attn_implementation == before
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_confidence_by_hand():
    """The mean over real positions of the largest weight, from the model's own maps."""
    model = tiny_model("bert", attn_implementation="eager")
    batch = labelled(model, "bert")
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions[0]
    largest = maps.amax(-1)  # (batch, heads, queries)
    expected = (largest[0].mean(-1) + largest[1, :, :5].mean(-1)) / 2
    found = hp.score(model, [batch], method="confidence").scores["encoder.0"]
    assert found == pytest.approx(expected.tolist(), rel=1e-5)


def test_attention_to_the_end_token_does_not_count_for_confidence():
    """Voita et al. leave it out before taking the maximum."""
    model = tiny_model("gpt2", attn_implementation="eager")
    batch = labelled(model, "gpt2")
    batch["input_ids"][:, 0] = 2  # the end token of the tiny config
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions[0].clone()
    maps[..., 0] = 0
    largest = maps.amax(-1)
    expected = (largest[0].mean(-1) + largest[1, :, :5].mean(-1)) / 2
    found = hp.score(model, [batch], method="confidence").scores["decoder.0"]
    assert found == pytest.approx(expected.tolist(), rel=1e-5)


def test_random_scores_need_no_data_and_repeat():
    """The seed is on record."""
    model = tiny_model("bert")
    a, b, c = (hp.score(model, method="random", seed=s) for s in (1, 1, 2))
    assert a == b != c
    assert a.options == {"seed": 1}


def test_a_masked_model_can_be_scored_for_rescoring():
    """Heads that are off move nothing; the rest is scored as it then matters."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    mask = hp.HeadMask.full(hp.find_heads(model)).without("encoder.0:1", "encoder.0:2")
    scores = hp.score(model, [batch], mask=mask)
    assert scores["encoder.0:1"] == scores["encoder.0:2"] == 0.0
    pruned = hp.prune_(tiny_model("bert"), mask)
    again = hp.score(pruned, [batch])
    assert again["encoder.0:1"] is None
    for head in ("encoder.0:0", "encoder.0:3", "encoder.1:2"):
        assert again[head] == pytest.approx(scores[head], abs=1e-6)


TASKS = {
    "tagging": (AutoModelForTokenClassification, lambda ids: {"labels": ids % 2}),
    "masked words": (AutoModelForMaskedLM, lambda ids: {"labels": ids.masked_fill(ids % 3 != 0, -100)}),
    "questions": (
        AutoModelForQuestionAnswering,
        lambda ids: {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 3])},
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_other_heads_with_labels_work_out_of_the_box(task):
    """The loss of an example is worked out and agrees with the model's own."""
    auto, labels = TASKS[task]
    model = tiny_model("bert", auto=auto)
    batch = example_inputs(model)
    batch |= labels(batch["input_ids"])
    scores = hp.score(model, [batch])
    assert all(value > 0 for row in scores.scores.values() for value in row)


@pytest.mark.parametrize(("settings", "labels"), [
    ({"num_labels": 1, "problem_type": "regression"}, torch.tensor([0.5, -1.0])),
    ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.tensor([[1.0, 0, 1], [0, 0, 1]])),
])  # fmt: skip
def test_regression_and_several_labels(settings, labels):
    """Mean squared error and binary cross-entropy per example."""
    model = tiny_model("bert", **settings)
    batch = example_inputs(model) | {"labels": labels}
    assert hp.score(model, [batch]).counts["encoder.0"] == 2.0


def test_sum_and_mean_of_token_losses():
    """`sum` weighs long examples more: with one example it is the mean times its tokens."""
    model = tiny_model("gpt2")
    batch = singles(labelled(model, "gpt2"))[0]
    tokens = int((batch["labels"][:, 1:] != -100).sum())
    mean, total = hp.score(model, [batch]), hp.score(model, [batch], loss="sum")
    assert torch.allclose(rows(total), rows(mean) * tokens, rtol=1e-4)


def test_data_may_be_a_loader_or_a_dataset_with_a_collator():
    """Or a list of batches."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    examples = [{k: v[i] for k, v in batch.items()} for i in range(2)]

    class Examples(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return examples[index]

    expected = rows(hp.score(model, [batch]))
    assert torch.allclose(rows(hp.score(model, DataLoader(Examples(), batch_size=2))), expected, atol=1e-7)
    assert torch.allclose(rows(hp.score(model, Examples(), batch_size=1)), expected, atol=1e-6)


def test_scoring_leaves_the_model_as_it_was():
    """Training mode, gradients wanted, no gradients left, no hooks, no forward of ours."""
    model = tiny_model("siglip").train()
    batch = example_inputs(model)
    wants = [p.requires_grad for p in model.parameters()]
    for method in ("sensitivity", "ablation", "confidence", "output-norm"):
        hp.score(model, [batch], method=method, loss=lambda o, b: o.logits_per_image.sum(1))
    assert model.training
    assert [p.requires_grad for p in model.parameters()] == wants
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_pre_hooks or m._forward_hooks or "forward" in vars(m) for m in model.modules())


def test_bad_data_is_told():
    """No batch, no labels, a NaN, a batch that is not a table, a wrong method."""
    model = tiny_model("bert")
    batch = labelled(model, "bert")
    with pytest.raises(DataError, match="no batch"):
        hp.score(model, [])
    with pytest.raises(UnsupportedModelError, match="labels"):
        hp.score(model, [{k: v for k, v in batch.items() if k != "labels"}])
    with pytest.raises(DataError, match="not finite"):
        hp.score(model, [batch], loss=lambda o, b: o.logits.sum(1) * float("nan"))
    with pytest.raises(DataError, match="one number per example"):
        hp.score(model, [batch], loss=lambda o, b: o.logits)
    with pytest.raises(DataError, match="expected a table"):
        hp.score(model, [(1, 2)])
    with pytest.raises(UnknownNameError, match="Did you mean 'sensitivity'"):
        hp.score(model, [batch], method="sensitivty")
    with pytest.raises(HeadpruneError):
        hp.score(model, [batch], loss="median")


def test_a_user_adds_a_scorer_with_a_decorator():
    """Under the name that users type."""

    @scorers.add("first-is-best")
    def first(job):
        return hp.HeadScores.from_values(
            job.heads, {s.id: range(s.num_heads, 0, -1) for s in job.heads}, method="first-is-best"
        )

    try:
        assert hp.select(hp.score(tiny_model("bert"), method="first-is-best"), keep=2).to_dict() == {
            "encoder.0": [0],
            "encoder.1": [0],
        }
    finally:
        scorers._items.pop("first-is-best")


@pytest.mark.parametrize(
    ("family", "value_rows"),
    [
        ("bert", lambda m, h: m.bert.encoder.layer[0].attention.self.value.weight[8 * h : 8 * h + 8]),
        ("gpt2", lambda m, h: m.transformer.h[0].attn.c_attn.weight.T[64 + 8 * h : 64 + 8 * h + 8]),
        ("gpt_neox", lambda m, h: m.gpt_neox.layers[0].attention.query_key_value.weight[24 * h + 16 : 24 * h + 24]),
        ("llama", lambda m, h: m.model.layers[0].self_attn.v_proj.weight[8 * (h // 2) : 8 * (h // 2) + 8]),
        ("phi3", lambda m, h: m.model.layers[0].self_attn.qkv_proj.weight[48 + 8 * (h // 2) : 56 + 8 * (h // 2)]),
        ("deepseek_v3", lambda m, h: m.model.layers[0].self_attn.kv_b_proj.weight[14 * h + 8 : 14 * h + 14]),
        ("t5", lambda m, h: m.encoder.block[0].layer[0].SelfAttention.v.weight[8 * h : 8 * h + 8]),
    ],
)
def test_magnitude_is_the_norm_of_the_value_output_product(family, value_rows):
    """Values are found in separate, fused, interleaved, shared and latent projections without a table of names."""
    model = tiny_model(family)
    site = hp.find_heads(model).sites[0]
    output = model.get_submodule(site.output).weight
    output = output.T if family == "gpt2" else output
    found = hp.score(model, method="magnitude").scores[site.id]
    for h in range(site.num_heads):
        part = slice(h * site.head_dim, (h + 1) * site.head_dim)
        assert found[h] == pytest.approx((output[:, part] @ value_rows(model, h)).norm().item(), rel=1e-5)


def test_magnitude_is_refused_where_values_have_no_weight_of_their_own():
    """nn.MultiheadAttention packs them into one parameter that is no projection."""
    with pytest.raises(UnsupportedModelError, match="output-norm"):
        hp.score(tiny_model("siglip"), method="magnitude")


def test_a_recording_keeps_only_what_replays_ask_for():
    """Outputs of layers and of what comes before a projection inside its layer; not the insides of other parts."""
    from headprune.hooks import recorded

    model = tiny_model("bert")
    batch = labelled(model, "bert")
    heads = hp.find_heads(model)
    with torch.no_grad(), recorded(model) as recording:
        model(**batch)
    everything = sum(call.output is not None for call in recording.calls)
    recording.keep_only(model.get_submodule(site.output) for site in heads)
    kept = {call.module for call in recording.calls if call.output is not None}
    assert model.bert.encoder.layer[0] in kept
    assert model.bert.encoder.layer[1].attention.self in kept
    assert model.bert.encoder.layer[1].attention.self.query not in kept
    assert model.bert.encoder.layer[0].intermediate.dense not in kept
    assert model.bert.encoder.layer[1] not in kept
    assert len(kept) < everything / 2


def test_the_statistics_are_at_hand():
    """`hp.stats`, without importing it first."""
    assert hp.stats.holm([0.01]) == [0.01]
