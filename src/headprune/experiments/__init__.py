"""Sweeps of trials with stable keys: what to run, what is stored, who runs it."""

from headprune.experiments import arithmetic as arithmetic  # registers its kinds of work
