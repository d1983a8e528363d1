"""Masks within a budget of parameters, MACs, time or loss."""
