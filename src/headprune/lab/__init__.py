"""The papers' laboratory: models, analysis, experiments, reports."""
