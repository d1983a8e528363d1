"""Recovery without training: what the removed heads wrote, given to what is left of the output projection."""

from headprune.recovery.fits import Fit, recoveries
from headprune.recovery.run import Repair, recover_, repair, repaired
from headprune.recovery.searching import BEST, Way, search

__all__ = ["BEST", "Fit", "Repair", "Way", "recover_", "recoveries", "repair", "repaired", "search"]
