"""The original WebShop, for comparison."""
