"""`curvature`."""

from __future__ import annotations

import torch

import headprune as hp
from headprune.hooks import captured_inputs
from headprune.recovery.sequential import columns_of
from headprune.scoring.context import ExampleLoss, ScoringContext
from headprune.scoring.methods.reconstruction import elimination
from headprune.scoring.moments import moments_of
from tests.families.tiny import labelled_batches, tiny_model


def test_curvature_is_the_elimination_of_what_the_loss_sees():
    """A squared error has a constant curvature: what a head adds is what refitting without it adds to that error."""
    model = tiny_model("bert", num_hidden_layers=1).eval()
    batches = labelled_batches(model)
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
