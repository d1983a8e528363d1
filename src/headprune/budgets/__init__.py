"""Masks within a budget of parameters, MACs, time or loss. One file each in `kinds/`; `select` takes any."""

from headprune.budgets.budget import Budget, BudgetMask, Selection, budgets, find_mask
from headprune.budgets.select import select

__all__ = ["Budget", "BudgetMask", "Selection", "budgets", "find_mask", "select"]
