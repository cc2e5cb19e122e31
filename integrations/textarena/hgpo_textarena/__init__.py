"""TextArena's single-player games (Guertler et al. 2025) as text environments of HGPO."""
