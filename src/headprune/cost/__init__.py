"""What a model costs: parameters and MACs counted, time and memory measured."""
