"""Scores that know of repair, and the search that uses them."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.errors import HeadpruneError, MaskError
from headprune.hooks import captured_inputs
from headprune.recovery import Fit, SearchConfig, recoveries
from headprune.recovery.fits import columns_of
from headprune.scoring.context import ScoringContext
from headprune.scoring.losses import ExampleLoss
from headprune.scoring.methods.fisher_block import cheapest_first
from headprune.scoring.methods.reconstruction import elimination
from headprune.scoring.methods.residual import Unexplained
from headprune.scoring.moments import Moments, moments_of
from headprune.structure import example_inputs
from tests.families.tiny import tiny_model


def labelled(model, count=3):
    """Batches with labels that the model computes a loss from."""
    batches = [example_inputs(model, seed=seed) for seed in range(count)]
    return [{**batch, "labels": torch.tensor([0, 1])} for batch in batches]


@pytest.fixture
def moments():
    torch.manual_seed(0)
    rows = torch.randn(200, 12, dtype=torch.float64) @ torch.randn(12, 12, dtype=torch.float64) + 0.3
    found = Moments()
    found.add(rows)
    return rows, found


def test_what_is_left_of_a_head_is_the_residual_of_a_regression(moments):
    """Head by head, as torch's own least squares has it."""
    rows, found = moments
    rest = Unexplained(found, 4, ridge=0.0, centred=True)(rows)
    centred = rows - rows.mean(0)
    for head in range(4):
        own, others = columns_of([head], 3), columns_of([h for h in range(4) if h != head], 3)
        fit = torch.linalg.lstsq(centred[:, others], centred[:, own]).solution
        torch.testing.assert_close(rest[:, own], centred[:, own] - centred[:, others] @ fit)


def test_elimination_is_what_refitting_after_every_head_finds(moments):
    """The closed form of each step against fitting anew, for every head that could have gone."""
    _, found = moments
    weight = torch.randn(5, 12, generator=torch.Generator().manual_seed(1)).double()
    full = Fit(weight, torch.zeros(5).double())

    def error(kept):
        fit = recoveries["least-squares"](full, found, kept, 3, ridge=0.0)
        return full.error(fit, found, columns_of(kept, 3))

    left, spent, expected, largest = [0, 1, 2, 3], 0.0, torch.zeros(4).double(), 0.0
    while left:
        costs = {head: error([h for h in left if h != head]) - spent for head in left}
        head = min(left, key=costs.get)
        largest = max(largest, costs[head])
        expected[head], spent = largest, spent + costs[head]
        left.remove(head)
    blocks = [columns_of([head], 3) for head in range(4)]
    torch.testing.assert_close(elimination(weight, found.products(centred=True), blocks, ridge=0.0), expected)


def test_heads_that_push_against_each_other_cost_less_together():
    """1 and 2 cancel: the second of them to go costs little."""
    gradients = torch.tensor([[1.0, -1.0, 0.9], [2.0, -2.0, 0.5]]).double()
    added = cheapest_first(gradients.T @ gradients)
    assert added.argsort().tolist()[0] == 2
    assert torch.allclose(cheapest_first(torch.eye(3).double()), torch.ones(3).double())


@pytest.mark.parametrize("method", ["residual", "reconstruction", "fisher-block"])
@pytest.mark.parametrize("family", ["bert", "llama", "bart", "swin"])
def test_scores_have_a_number_for_every_head(method, family):
    """Also with grouped queries, cross-attention and windows."""
    from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

    autos = {"swin": AutoModelForImageClassification, "bart": AutoModelForSeq2SeqLM}
    auto = autos.get(family, AutoModelForSequenceClassification)
    model = tiny_model(family, auto=auto, pad_token_id=1, num_labels=2)
    batches = labelled(model)
    if family == "bart":
        batches = [{**batch, "labels": batch["decoder_input_ids"]} for batch in batches]
    heads = hp.find_heads(model)
    scores = hp.score(model, batches, method=method)
    rows = [scores.scores[site.id] for site in heads]
    assert all(value is not None and value >= 0 and value == value for row in rows for value in row)
    assert len({round(value, 12) for row in rows for value in row}) > len(heads.sites)


def test_a_head_that_others_can_replace_has_no_residual():
    """A copy of another head: nothing is lost with either, much with both."""
    model = tiny_model("bert", num_labels=2)
    attention = model.get_submodule(hp.find_heads(model)["encoder.0"].path).self
    with torch.no_grad():
        for projection in (attention.query, attention.key, attention.value):
            projection.weight[8:16] = projection.weight[:8]
            projection.bias[8:16] = projection.bias[:8]
    batches = labelled(model)
    row = hp.score(model, batches, method="residual", ridge=1e-10).scores["encoder.0"]
    assert max(row[:2]) < 1e-3 * min(row[2:])
    added = hp.score(model, batches, method="reconstruction", ridge=1e-10).scores["encoder.0"]
    assert min(added[:2]) < 1e-6 < 1e-3 < max(added[:2])


def test_rounds_look_again_and_leave_the_model_alone():
    """Of two copies, one goes in the first round; the second round sees that the other is needed."""
    model = tiny_model("bert", num_labels=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = labelled(model)
    for way in (
        SearchConfig(),
        SearchConfig(rounds=3),
        SearchConfig(method="sensitivity", recover=None, rounds=2),
        SearchConfig(rounds=2, swaps=4),
    ):
        mask = hp.search(model, batches, prune=0.5, way=way)
        assert len(mask) == 4
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    hp.prune_(hp.recover_(model, mask, batches), mask)


def test_one_round_is_score_and_select():
    """No more than that, and no less."""
    model = tiny_model("bert", num_labels=2)
    batches = labelled(model)
    scores = hp.score(model, batches, method="residual")
    assert hp.search(model, batches, prune=3) == hp.select(scores, hp.find_heads(model), prune=3)


def test_groups_go_together():
    """As `select` has them."""
    from transformers import AutoModelForSequenceClassification

    model = tiny_model("llama", auto=AutoModelForSequenceClassification, pad_token_id=1, num_labels=2)
    heads = hp.find_heads(model)
    mask = hp.search(model, labelled(model), prune=2, unit="group", way=SearchConfig(rounds=2))
    assert len(heads) - len(mask) == 2 * len(heads.sites[0].groups[0])
    hp.prune_(model, mask, gqa="group")


def test_swaps_lower_the_loss():
    """On the data that it is given, never the other way."""
    model = tiny_model("bert", num_labels=2)
    batches = labelled(model, 4)

    def loss(mask):
        import copy

        repaired = hp.recover_(copy.deepcopy(model), mask, batches)
        with torch.no_grad(), hp.masked(repaired, mask):
            return sum(float(repaired(**batch).loss) for batch in batches)

    plain = hp.search(model, batches, prune=0.5, way=SearchConfig(method="magnitude"))
    swapped = hp.search(model, batches, prune=0.5, way=SearchConfig(method="magnitude", swaps=6))
    assert loss(swapped) <= loss(plain) + 1e-6


def test_nonsense_is_refused():
    """No rounds at all, and a repair that nobody knows."""
    model = tiny_model("bert", num_labels=2)
    with pytest.raises(HeadpruneError, match="Did you mean 'least-squares'"):
        hp.search(model, labelled(model), prune=0.5, way=SearchConfig(recover="least-square"))
    with pytest.raises(MaskError, match="at least one round"):
        hp.search(model, labelled(model), prune=0.5, way=SearchConfig(rounds=0))


def test_swaps_keep_what_sites_must_keep():
    """`at_least` holds at the end, too."""
    model = tiny_model("bert", num_labels=2)
    heads = hp.find_heads(model)
    for seed in range(3):
        batches = labelled(model, 2 + seed)
        mask = hp.search(model, batches, prune=0.5, at_least=2, way=SearchConfig(method="magnitude", swaps=8))
        assert all(len(mask.kept(site.id)) >= 2 for site in heads)


def test_layers_that_share_a_block_count_together():
    """ALBERT: with nothing explained, the residual is the sensitivity, of all layers and not of the last."""
    model = tiny_model("albert", num_labels=2)
    for site in hp.find_heads(model):
        model.get_submodule(site.output).bias = None
    batches = labelled(model)
    residual, sensitivity = (
        hp.score(model, batches, method=method, **more).scores
        for method, more in (("residual", {"ridge": 1e12}), ("sensitivity", {}))
    )
    for site, row in sensitivity.items():
        assert residual[site] == pytest.approx(row, rel=1e-3)


def test_curvature_is_the_elimination_of_what_the_loss_sees():
    """A squared error has a constant curvature: what a head adds is what refitting without it adds to that error."""
    model = tiny_model("bert", num_hidden_layers=1).eval()
    batches = labelled(model)
    heads = hp.find_heads(model)
    scores = hp.score(model, batches, method="curvature", ridge=1e-6)
    assert scores.view == "none"
    job = ScoringContext(model=model, heads=heads, batches=batches, loss=ExampleLoss("mean"))
    (moments,) = moments_of(job, list(heads), batches).values()
    output = model.get_submodule(heads["encoder.0"].output)
    pushes, examples = torch.zeros(32, 32, dtype=torch.float64), 0
    for batch in batches:
        with captured_inputs(model, {"x": output}) as seen:
            loss = model(**batch).loss * 2  # the sum over two examples
        (grad,) = torch.autograd.grad(loss, seen["x"])
        rows = grad.flatten(0, -2).double()
        pushes, examples = pushes + rows.T @ rows, examples + 2
    values, vectors = torch.linalg.eigh(pushes / examples)
    root = values.clamp_min(0).sqrt()[:, None] * vectors.T
    blocks = [columns_of([head], 8) for head in range(4)]
    expected = elimination(root, moments.products(centred=True), blocks, ridge=1e-6)
    torch.testing.assert_close(torch.tensor(scores.scores["encoder.0"]).double(), expected)


def test_groups_are_eliminated_together():
    """The score of a group is shared among its heads, and both units agree where there are no groups."""
    model = tiny_model("llama").eval()
    batch = example_inputs(model)
    batches = [{**batch, "labels": batch["input_ids"]}]
    for method in ("curvature", "reconstruction"):
        scores = hp.score(model, batches, method=method, unit="group").scores["decoder.0"]
        assert scores[0] == scores[1] != scores[2] == scores[3]
    model = tiny_model("bert").eval()
    by_head, by_group = (hp.score(model, labelled(model), method="curvature", unit=u).scores for u in ("head", "group"))
    assert by_head == by_group


def test_sensitivity_and_entropy_combined_lie_between_the_two():
    """Weight 0 orders a site as sensitivity does, 1 as entropy; other weights are refused."""
    model = tiny_model("bert").eval()
    batches = labelled(model)
    for weight, alone in ((0.0, "sensitivity"), (1.0, "entropy")):
        both = hp.score(model, batches, method="sensitivity-entropy", weight=weight).scores["encoder.1"]
        single = hp.score(model, batches, method=alone).scores["encoder.1"]
        assert sorted(range(4), key=both.__getitem__) == sorted(range(4), key=single.__getitem__)
        assert max(both) == 1.0
    with pytest.raises(HeadpruneError, match="expected 0 to 1"):
        hp.score(model, batches, method="sensitivity-entropy", weight=2.0)


def test_scores_that_do_not_add_up_are_taken_in_one_go(tmp_path):
    """A command that works in parts gives what all batches give."""
    from headprune.scoring import resumable

    model = tiny_model("bert").eval()
    batches = labelled(model, count=resumable.PART + 3)
    parts = resumable.score_in_parts(model, batches, tmp_path / "unfinished", method="curvature")
    assert parts.scores == hp.score(model, batches, method="curvature").scores
