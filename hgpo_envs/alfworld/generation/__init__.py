"""New ALFWorld games: drafted, written in the official format, won by the expert."""
