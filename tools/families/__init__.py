"""Tiny models of every type that transformers has, and whether pruning them is exact: `python -m tools.families`."""
