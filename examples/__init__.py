"""Short example programs that use the packages."""
