"""Prune a PyTorch model that knows nothing of transformers: nn.TransformerEncoder in a plain training loop.

Run: python examples/plain_pytorch.py
The task: does the first token of a sequence come again? Only attention can tell.
"""

import torch
from torch import Tensor, nn

import headprune as hp


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 64), nn.Parameter(torch.randn(8, 64) * 0.1)
        layer = nn.TransformerEncoderLayer(64, 8, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.answer = nn.Linear(64, 2)

    def forward(self, ids: Tensor) -> Tensor:  # (batch, length) -> (batch, 2)
        return self.answer(self.encoder(self.tokens(ids) + self.places)[:, 0])


def batch(size: int) -> dict[str, Tensor]:
    ids = torch.randint(12, (size, 8))
    return {"ids": ids, "_labels": (ids[:, 1:] == ids[:, :1]).any(1).long()}  # "_": not for the model, for the loss


def loss(logits: Tensor, given: dict[str, Tensor]) -> Tensor:  # one number per example
    return nn.functional.cross_entropy(logits, given["_labels"], reduction="none")


def train(steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for given in (batch(64) for _ in range(steps)):
        loss(model(given["ids"]), given).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def report(what: str) -> None:
    right = (model(test["ids"]).argmax(1) == test["_labels"]).float().mean()
    print(f"{what}: {len(hp.find_heads(model, example))} heads, accuracy {right:.3f}")


torch.manual_seed(0)
model, test = Detector(), batch(2000)
example = {"ids": test["ids"][:4]}  # there is no config to make inputs from
train(600)
report("trained")
scores = hp.score(model, [batch(64) for _ in range(8)], heads=hp.find_heads(model, example), loss=loss)
mask = hp.select(scores, prune=0.75, at_least=1)
hp.prune_(model, mask, example=example)
report("pruned")
train(100)
report("trained again")
fresh = hp.prune_(Detector(), mask, example=example)  # how to load it: the same class and mask, then the weights
fresh.load_state_dict(model.state_dict())
print("loaded again, same answers:", torch.equal(fresh(test["ids"]), model(test["ids"])))
