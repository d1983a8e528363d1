"""Does pruning work with a model? Every equality that it rests on, checked on that model."""

from headprune.model_checks import paths as _  # noqa: F401  # more checks, after those
from headprune.model_checks.checks import CORE, NotApplicableError, Refused, checks, one_unit_fewer
from headprune.model_checks.verdict import STATUSES, Verdict, check_model

__all__ = ["CORE", "STATUSES", "NotApplicableError", "Refused", "Verdict", "check_model", "checks", "one_unit_fewer"]
