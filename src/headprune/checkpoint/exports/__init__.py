"""Pruned models for places where headprune is not installed, one file a format."""
