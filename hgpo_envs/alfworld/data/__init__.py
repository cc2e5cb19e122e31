"""ALFWorld's data: packs, official game folders, the official release, the rooms, and the task source."""
