"""Every error that headprune raises on purpose. Catch `HeadpruneError` to catch them all.

A message says what was found, what was expected and what to do.
"""

from __future__ import annotations


class HeadpruneError(Exception):
    """Root of the tree."""


class UnknownNameError(HeadpruneError, KeyError):
    """A head, site, method or option that does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the message in quotes


class MaskError(HeadpruneError, ValueError):
    """A mask or a set of weights that does not fit the model."""


class PatternError(MaskError):
    """A pattern that cannot be read, or that does not fit the model. Says at which character."""


class FileFormatError(HeadpruneError, ValueError):
    """A file that is not what it should be."""


class DataError(HeadpruneError, ValueError):
    """Data that cannot be used: empty, of the wrong shape, not finite."""


class GateError(HeadpruneError, ValueError):
    """Gates that cannot be made, trained or removed as asked."""


class TrainingError(HeadpruneError):
    """Training that went wrong (a loss that is not finite). Says where the last good state is."""


class UnsupportedModelError(HeadpruneError):
    """A model, or a block of it, on which the operation cannot be done exactly."""


class ExampleError(HeadpruneError):
    """No usable example batch: the model cannot be run on what was given or made up."""


class VerificationError(HeadpruneError):
    """A pruned model did not answer as the masked one. It was put back as it was."""


class CheckpointError(HeadpruneError, RuntimeError):
    """A checkpoint that cannot be written, or that does not hold what its config promises."""


class PresetError(HeadpruneError, ValueError):
    """A preset that does not exist, cannot be read or is not given what it needs. Says in which line."""


class StoreError(HeadpruneError):
    """A folder of results that cannot be used as asked: of a newer version, in use, incomplete."""


class MissingExtraError(HeadpruneError, ImportError):
    """An optional dependency is not installed."""
