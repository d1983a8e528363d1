"""Recovery without training: what the removed heads wrote, given to what is left of the output projection."""

from headprune.recovery.fits import Fit, recoveries
from headprune.recovery.greedy_search import BEST, SearchConfig, search
from headprune.recovery.recover import Repair, recover_, repair, repaired

__all__ = ["BEST", "Fit", "Repair", "SearchConfig", "recover_", "recoveries", "repair", "repaired", "search"]
