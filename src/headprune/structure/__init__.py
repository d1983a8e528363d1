"""Finding attention and neurons in a model: trace, ownership, names, example inputs."""
