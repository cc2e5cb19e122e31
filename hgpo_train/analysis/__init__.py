"""Statistics of a step table's contexts and groups, and their description in sentences."""
