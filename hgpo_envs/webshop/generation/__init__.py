"""Synthetic WebShop products and instructions, in the official raw formats."""
