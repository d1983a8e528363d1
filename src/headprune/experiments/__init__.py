"""Sweeps of trials with stable keys: what to run, what is stored, who runs it."""
