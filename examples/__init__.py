"""Short programs that use the packages, to copy from."""
