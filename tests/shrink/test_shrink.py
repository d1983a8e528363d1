"""The whole job in one call: budgets are kept, the price is told on data that nothing was fitted to."""

from __future__ import annotations

import copy

import pytest
import torch

import headprune as hp
from headprune.heads import HeadMask
from headprune.masking import masked
from headprune.recovery.recover import recover_
from headprune.scoring.closeness import WholeAnswers
from headprune.scoring.own_answers import with_own_labels
from headprune.shrink import Shrinker
from headprune.shrink.hold_out import held_out
from tests.families.tiny import tiny_model


def macs(model):
    return hp.measure(model, batch=1, length=16, repeats=0).macs.total


def batches(count=8, rows=8, length=10, labels=None, seed=0):
    """Token ids; labels of a classifier, or the text itself."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        ids = torch.randint(5, 40, (rows, length), generator=draw)
        given = {"class": torch.randint(0, 2, (rows,), generator=draw), "text": ids}
        found.append({"input_ids": ids, **({"labels": given[labels]} if labels else {})})
    return found


@pytest.mark.parametrize(("family", "labels"), [("bert", "class"), ("llama", "text"), ("bert", None), ("llama", None)])
def test_a_model_is_smaller_by_the_budget_and_answers_as_its_masked_self(family, labels):
    """With labels and without; the price is that of the model that was made."""
    model = tiny_model(family)
    whole = copy.deepcopy(model)
    before = macs(model)
    data = batches(labels=labels)
    shrunk = hp.shrink_(model, data, macs=0.6, length=16, repeats=0)
    after = macs(model)
    assert (shrunk.before.macs, shrunk.after.macs) == (before, after)
    assert after <= 0.6 * before
    assert shrunk.difference < 1e-5
    assert shrunk.after.parameters == sum(parameter.numel() for parameter in model.parameters())
    held = held_out(data)[1]
    with torch.no_grad():
        wanted = torch.cat([whole(**batch).logits for batch in held]).log_softmax(-1).flatten(0, -2)
        now = torch.cat([model(**batch).logits for batch in held]).log_softmax(-1).flatten(0, -2)
    kl = (wanted.exp() * (wanted - now)).sum(-1).mean()
    assert shrunk.price[1].kl == pytest.approx(float(kl), rel=1e-4, abs=1e-8)
    assert shrunk.price[0].kl == pytest.approx(0, abs=1e-7)
    same = (wanted.argmax(-1) == now.argmax(-1)).float().mean()
    assert shrunk.price[1].agreement == pytest.approx(float(same))
    assert (shrunk.price[1].loss is not None) == (labels is not None)


def test_every_budget_is_kept():
    """Parameters, heads, and points of agreement; heads alone where heads are counted."""
    data = batches(labels="class")
    model = tiny_model("bert")
    before = sum(parameter.numel() for parameter in model.parameters())
    hp.shrink_(model, data, params=0.9, length=16, repeats=0)
    assert sum(parameter.numel() for parameter in model.parameters()) <= 0.9 * before
    model = tiny_model("bert")
    shrunk = hp.shrink_(model, data, prune=0.5, length=16, repeats=0)
    assert (shrunk.before.heads, shrunk.after.heads) == (8, 4)
    assert shrunk.before.neurons == shrunk.after.neurons
    model = tiny_model("bert")
    shrunk = hp.shrink_(model, data, max_drop=100.0, length=16, repeats=0)
    assert shrunk.macs_left < 0.7  # everything may go
    model = tiny_model("bert")
    worth = []

    def evaluate(model):
        worth.append(macs(model))
        return 50.0 if len(worth) == 1 else 49.0

    shrunk = hp.shrink_(model, data, max_drop=0.5, evaluate=evaluate, length=16, repeats=0)
    assert shrunk.macs_left == 1  # each loses a point, which is too much
    assert len(worth) > 2


def test_a_list_of_budgets_gives_the_models_of_single_runs():
    """Weight by weight."""
    data = batches(labels="class")
    shrinker = Shrinker.of(tiny_model("bert"), data, length=16)
    for share in (0.8, 0.5):
        one = shrinker.copied()
        one.shrink_("macs", share, repeats=0)
        alone = tiny_model("bert")
        hp.shrink_(alone, data, macs=share, length=16, repeats=0)
        assert one.model.state_dict().keys() == alone.state_dict().keys()
        for name, weight in alone.state_dict().items():
            torch.testing.assert_close(one.model.state_dict()[name], weight, rtol=0, atol=0)


def test_what_is_planned_is_what_is_done():
    """The price of a dry run is that of the model, and the model is left as it was."""
    data = batches(labels="class")
    model = tiny_model("bert")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    planned = Shrinker.of(model, data, length=16).planned("macs", 0.6)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    done = hp.shrink_(model, data, macs=0.6, length=16, repeats=0)
    assert planned.kept == done.kept
    assert (planned.after.macs, planned.after.parameters) == (done.after.macs, done.after.parameters)
    assert planned.price[1].kl == pytest.approx(done.price[1].kl, rel=1e-3, abs=1e-7)
    assert planned.difference is None


def test_time_is_measured_with_a_control():
    """Against the whole model, and against itself."""
    shrunk = hp.shrink_(tiny_model("bert"), batches(labels="class"), macs=0.6, length=16, repeats=3)
    assert shrunk.speed.speedup > 0
    assert shrunk.speed.control > 0
    text = str(shrunk)
    assert "times as fast" in text
    assert "the same model against itself" in text
    assert "price: " in text
    assert "on 16 examples that nothing was fitted to" in text


@pytest.mark.parametrize(
    ("given", "data", "told"),
    [
        ({}, batches(), "No budget was given; expected one of macs, params"),
        ({"macs": 0.5, "params": 0.5}, batches(), r"You gave two budgets \(macs and params\)"),
        ({"macs": 0.5}, batches(2, 4), "Found 8 examples; expected at least 32"),
        ({"macs": 0.001}, batches(), "smallest"),
        ({"macs": 0.5, "parts": "layers"}, batches(), "parts is 'layers'"),
        ({"max_drop": -1.0}, batches(), "expected 0 or more points"),
        ({"max_drop": float("nan")}, batches(), "expected 0 or more points"),
        ({"macs": 0.5, "repeats": -1}, batches(), "repeats is -1; expected a whole number, 0 or more"),
        ({"macs": 0.5, "length": 0}, batches(), "length is 0; expected a whole number, 1 or more"),
        ({"macs": 0.5}, [*batches(4, labels="class"), *batches(4)], "Batch 4 has no labels and others have some"),
        ({"macs": 0.5}, [{"pixels": torch.zeros(16, 3)}] * 4, "does not run on a batch of pixels"),
        ({"macs": 0.5, "method": "besst"}, batches(), "Did you mean 'best'"),
    ],
)
def test_bad_wishes_are_told_and_change_nothing(given, data, told):
    """With what would do."""
    model = tiny_model("bert")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(hp.HeadpruneError, match=told):
        hp.shrink_(model, data, **{"length": 16, "repeats": 0, **given})
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_own_labels_are_drawn_from_the_answers():
    """The mean gradient of their loss is nothing at the whole model: it expects its own answers."""
    from headprune.scoring.context import ExampleLoss, ScoringContext

    model = tiny_model("bert")
    data = batches(40, 16)
    context = ScoringContext(
        model=model, heads=hp.find_heads(model), batches=data, loss=ExampleLoss("mean"), seed=0
    )  # fmt: skip
    drawn, loss = with_own_labels(context, data, 0)
    shares = torch.cat([model(**batch).logits.softmax(-1) for batch in data]).mean(0).detach()
    own = torch.cat([batch["_own"] for batch in drawn])[:, 0]
    assert float((own == 1).float().mean()) == pytest.approx(float(shares[1]), abs=0.06)
    again, _ = with_own_labels(context, data, 0)
    assert all(torch.equal(one["_own"], other["_own"]) for one, other in zip(drawn, again, strict=True))
    batch = drawn[0]
    expected = torch.nn.functional.cross_entropy(model(**data[0]).logits, batch["_own"][:, 0], reduction="none")
    torch.testing.assert_close(loss(model(**data[0]), batch), expected)


def test_padding_has_no_price():
    """Answers at padded positions count neither in agreement nor in KL."""
    from headprune.scoring.context import ExampleLoss, ScoringContext

    model = tiny_model("llama")
    (batch,) = batches(1, 4, 8)
    batch["attention_mask"] = torch.ones(4, 8, dtype=torch.long)
    batch["attention_mask"][:, 5:] = 0
    context = ScoringContext(
        model=model, heads=hp.find_heads(model), batches=[batch], loss=ExampleLoss("mean"), seed=0
    )  # fmt: skip
    assert WholeAnswers.of(context, [batch]).closeness.answers == 20


def test_stream_repairs_no_worse_than_nothing():
    """The repair that looks at the stream brings answers nearer to the whole model's than masking alone."""
    model = tiny_model("bert", num_hidden_layers=3)
    data = batches(16, 8)
    heads = hp.find_heads(model)
    mask = HeadMask.full(heads).without(*[f"{site.id}:0" for site in heads])
    whole = copy.deepcopy(model)

    def gap(model):
        with torch.no_grad():
            return sum(float((model(**b).logits - whole(**b).logits).square().sum()) for b in batches(8, 8, seed=1))

    with masked(model, mask):
        alone = gap(model)
    recover_(model, mask, data, method="stream")
    with masked(model, mask):
        assert gap(model) < alone
