"""Language models: loaded, made on the spot, and as files of checkpoints."""
