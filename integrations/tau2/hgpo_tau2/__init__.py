"""The retail tasks of tau2-bench (Barres et al. 2025) as a text environment of HGPO."""
