"""The sentences of docs/compare.md that are not figures."""

from __future__ import annotations

TITLE = [
    "# Beside other tools",
    "",
    "The same work for headprune and four other ways to remove attention heads. Each tool has its own environment, "
    "with pinned versions, and is called as its own documentation says.",
]

CASES = {
    "llama": "grouped queries (Llama, 8 heads, 4 for keys)",
    "llama-8-2": "grouped queries (Llama, 8 heads, 2 for keys)",
    "gpt2": "one projection for query, key, value (GPT-2, Conv1D)",
    "gpt_neox": "the same, by head (GPT-NeoX, Linear)",
    "phi3": "the same, stacked (Phi-3, Linear)",
    "bart": "cross-attention (BART)",
    "empty": "a layer that loses all its heads (BERT)",
}

ABOUT = [
    "How to read it:",
    "",
    "- Times are seconds on one thread. All tools run in every round, in turning order; the ratio to headprune is "
    "taken round by round. A peer is level if the quartiles of its ratio reach into the span of headprune's ratio to "
    "itself.",
    "- Score: gradients on the same examples (headprune `sensitivity`, transformers `head_mask` gradients, "
    "TextPruner's loss-based scores, Torch-Pruning's Taylor gradients and its graph). slimformers scores and prunes in "
    "one call, which is in the first row and in the third.",
    "- Largest difference: the pruned model against the original with just those heads multiplied by zero. Which heads "
    "are gone is read from the weights, not from what the tool says. Equal means within 1e-4 of the largest output (or "
    "of 1 if that is larger), and within a hundredth of what masking changes.",
    "- Fresh process: saved and loaded as the tool's documentation has it (`save_pretrained`; `torch.save` of the "
    "model object for Torch-Pruning).",
    "- The small models have two layers and 8 heads a layer; each tool is asked for half of the heads. Works: heads "
    "are gone and the outputs are those of the masked model. For BART, heads of the cross-attention must be gone.",
    "- Accuracy: one checkpoint of MiniLM fine-tuned on SST-2 for all, 512 training sentences to choose (and repair) "
    "on, 872 dev sentences, 95 % bootstrap intervals; ahead or behind only if the interval of the paired difference "
    "excludes zero. headprune's way was fixed beforehand; a peer counts with the best of its ways on these very dev "
    "sentences, which favours it.",
]

WHY = {
    "score": "`score` first runs the model to find its heads and tries each in a small backward pass; the others are "
    "told where heads are. Scores by weights alone, which cost little else, took {score_by_weights:.3g} s.",
    "prune": "`prune_` runs the model while it cuts (a small forward pass, a tiny backward pass for each head, each "
    "block that changes), and compares the result with the masked model. Without this comparison (`verify=False`) it "
    "took {prune_unchecked:.3g} s.",
    "score_and_prune": "For the reasons of the rows above.",
    "score_by_weights": "headprune runs the model first, to find its heads.",
    "forward": "The tools' models run under different versions of transformers, the whole ones as well.",
    "speedup": "The tools' models run under different versions of transformers, the whole ones as well; the row of "
    "seconds has the pruned models side by side.",
}

# Where nobody is ahead: why no more was to be had, or who else has what it takes.
WHY_LEVEL = {
    "score": "Both take one forward and one backward pass.",
    "forward": "The same heads are gone: the same arithmetic is left.",
    "speedup": "The same heads are gone: the same arithmetic is left.",
    "parameters": "A head has the same weights for every tool.",
    "equal": "Exact is exact; what is left is the rounding of float32.",
    "reload": "transformers 4 writes `pruned_heads` into the config, which TextPruner uses, too; Torch-Pruning pickles "
    "the whole model, which headprune will not do: a pickle runs code when it is loaded.",
    "llama-8-2": "Torch-Pruning knows grouped queries, too, and here it comes to an end.",
    "gpt2": "`prune_heads` of transformers 4 was written for GPT-2 and BERT.",
    "phi3": "Torch-Pruning follows the slices of a stacked projection.",
    "bart": "Torch-Pruning treats cross-attention as it does any other layer.",
    "quality": "Half of this model's heads can go by any sensible order without a loss that 872 sentences can show. "
    "With three quarters gone, orders and repairs part: see the [leaderboard](leaderboard.md).",
}

STRONG = {
    "transformers": [
        "Nothing to install beside transformers 4, and `prune_heads` takes no time to speak of.",
        "Pruned BERT- and GPT-2-like models reload with `from_pretrained` alone, through `config.pruned_heads`.",
    ],
    "textpruner": [
        "Prunes vocabularies (and tokenizers) and feed-forward neurons, alone or together with heads "
        "([README](https://github.com/airaria/TextPruner)).",
        "Can score without labels, by the model's own logits; has a command line.",
        "Vocabulary pruning covers BART, T5, mT5 and XLM, too, by its table of models.",
    ],
    "torch-pruning": [
        "Prunes any layer: convolutions, norms, embeddings, hidden widths, head widths, not only heads and neurons; "
        "vision, detection and diffusion models ([README](https://github.com/VainF/Torch-Pruning)).",
        "Needs only torch and numpy, and no transformers.",
        "Many importance criteria, sparse training with regularisers, and pruning in steps with your own code between.",
    ],
    "slimformers": [
        "Feed-forward and head pruning by activations, without labels or gradients, and LoRA fine-tuning after it, in "
        "one package ([PyPI](https://pypi.org/project/slimformers/)).",
        "A command line that prunes from a text file.",
    ],
}

COMMANDS = [
    "## To repeat it",
    "",
    "```console",
    "$ make bench-peers",
    "$ python benchmarks/peers/run.py --data-dir path/to/data",
    "$ python benchmarks/peers/run.py --quick --only torch-pruning",
    "```",
    "",
    "`path/to/data` holds `sst2/train.tsv` and `sst2/dev.tsv` (a sentence and 0 or 1 a line, no header). Without "
    "`--classifier` the checkpoint is made first. Environments are made under `.venv-peers`, with the versions in "
    "`benchmarks/peers/*/requirements.txt`; every raw figure is in `benchmarks/results/peers.json`.",
]
