"""Moving from transformers v4: prune_heads, head_mask, and checkpoints that v4 pruned.

Run: python examples/from_v4.py [FOLDER]
FOLDER is a classifier whose config.json has `pruned_heads`; without it, a tiny one of this repository's tests, which
transformers 4.57.1 pruned and saved. The other parts use the MiniLM of the demo extra.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import headprune as hp

model = AutoModel.from_pretrained(hp.demo_model()).eval()
tokenizer = AutoTokenizer.from_pretrained(hp.demo_model())
batch = tokenizer(["heads were pruned here before", "and will be again"], padding=True, return_tensors="pt")

# v4: model(**batch, head_mask=mask). On v5 the argument is ignored without a word.
mask = torch.ones(6, 12)  # layers, heads
mask[0, [1, 2]] = mask[5, 7] = 0
with torch.no_grad(), hp.compat.head_mask(model, mask):
    masked = model(**batch).last_hidden_state

# The gradient of a mask, from which v4's run_bertology.py made its scores. For scores, hp.score is the better way.
weights = torch.ones(6, 12, requires_grad=True)
with hp.compat.head_mask(model, weights):
    model(**batch).last_hidden_state[:, 0].norm(dim=-1).sum().backward()
layer, head = divmod(int(weights.grad.abs().argmax()), 12)
print(f"head_mask: the first token's vector depends most on head {head} of layer {layer}")

# v4: model.prune_heads({0: [1, 2], 5: [7]})
hp.prune_heads(model, {0: [1, 2], 5: [7]})
with torch.no_grad():
    gap = (model(**batch).last_hidden_state - masked).abs().max().item()
print(f"prune_heads: {len(hp.find_heads(model))} of 72 heads left; pruned and masked differ by {gap:.0e}")
print(f"config.pruned_heads is kept, as in v4: {model.config.pruned_heads}")

# v4: the config of a pruned checkpoint says `pruned_heads`. After `import headprune`, the ordinary call reads it.
given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "tests/data/v4/bert"
old = AutoModelForSequenceClassification.from_pretrained(given).eval()
print(f"the v4 checkpoint: {len(hp.find_heads(old))} heads left, gone: {old.config.pruned_heads}")
answers = given / "answers.json"  # what v4 itself answered, where somebody wrote it down
if answers.is_file():
    told = json.loads(answers.read_text())
    with torch.no_grad():
        logits = old(torch.tensor(told["inputs"]["input_ids"])).logits
    same = torch.allclose(logits, torch.tensor(told["logits"]), atol=1e-5)
    print(f"its answers are {'those' if same else 'not those'} of {told['made_with']}")
