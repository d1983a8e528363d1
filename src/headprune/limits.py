"""How much a file may ask for: more than any real model or experiment needs, and less than what takes long to refuse.

Files come from anywhere. These are looked at before any loop over what a file says.
"""

from __future__ import annotations

JSON_BYTES = 1 << 28  # a file that headprune parses: a config with the neurons of the largest models has 2**26
PRESET_BYTES = 1 << 18  # those that come with headprune have at most 2**14
DOTS = 300  # in one line of a preset: a name with more parts takes the square of their number to read
TEXT_BYTES = 1 << 28  # a tokenizer, a vocabulary, a card beside a model: the largest have 2**25
COMPANION_BYTES = 1 << 36  # anything else beside a model
COMPANIONS = 10_000  # files beside a model
DEEPEST = 100  # lists and tables inside one another

SITES = 1 << 15  # of a model: 61 layers of 256 experts are 2**14
LAYERS = 1 << 13  # that share one block
HEADS = 1 << 12  # of one attention block
NEURONS = 1 << 20  # of one feed-forward part, and channels of one block
ALL_HEADS = 1 << 22  # of a model, and neurons
SMALL_MODEL = 1 << 17  # heads, neurons or kept entries that a config may tell of; a larger model's, in proportion
SHOWN_HEADS = 1 << 17  # of a model on a page: each is a cell of a table
TRIALS = 1_000  # of one scale of a preset
