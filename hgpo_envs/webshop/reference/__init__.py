"""The original WebShop as a reference for comparison."""
