"""The original ALFWorld, for comparison."""
