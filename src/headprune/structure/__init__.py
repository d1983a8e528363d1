"""Finding attention and neurons in a model: trace, projections, names, example inputs."""
