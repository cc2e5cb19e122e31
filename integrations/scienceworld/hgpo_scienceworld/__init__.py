"""ScienceWorld's elementary science tasks (Wang et al. 2022) as text environments of HGPO."""
