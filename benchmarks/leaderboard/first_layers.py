"""What a person would do instead of pruning: `python -m benchmarks.leaderboard.first_layers MODEL COUNT OUT` saves the
first layers of a model, with its embeddings, as a model of its own to be fine-tuned."""

from __future__ import annotations

import sys

from transformers import AutoModel, AutoTokenizer


def main(model: str, count: int, out: str) -> None:
    smaller = AutoModel.from_pretrained(model, num_hidden_layers=count)  # the layers above are left in the file
    smaller.save_pretrained(out)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
