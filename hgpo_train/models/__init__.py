"""Language models: loading, small models with random weights, and the files of checkpoints."""
