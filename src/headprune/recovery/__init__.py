"""Recovery without training: what the removed heads wrote, given to what is left of the output projection."""

from headprune.recovery import methods as methods
from headprune.recovery.greedy_search import BEST, SearchConfig, search
from headprune.recovery.recover import Repair, recover_, repair, repaired
from headprune.recovery.sequential import Fit, recoveries

Way = SearchConfig  # its name in 0.1.0

__all__ = ["BEST", "Fit", "Repair", "SearchConfig", "Way", "recover_", "recoveries", "repair", "repaired", "search"]
