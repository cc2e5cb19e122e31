"""ALFWorld's scripted players `expert` and `explorer`."""
