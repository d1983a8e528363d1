"""Removing heads for real, and keeping the result."""
