"""Where ALFWorld's games come from: bundled and other packs, official folders, the release, the rooms."""
