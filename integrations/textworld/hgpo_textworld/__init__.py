"""TextWorld's generated games (Côté et al. 2018) as text environments of HGPO."""
