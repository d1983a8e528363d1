"""The whole job in one call: a model several times cheaper, without training."""

from headprune.shrink.shrink import Shrinker, shrink_
from headprune.shrink.shrunk import Retrained, Shrunk

__all__ = ["Retrained", "Shrinker", "Shrunk", "shrink_"]
