"""The original ALFWorld as a reference for comparison."""
