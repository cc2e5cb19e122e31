"""Generation of new ALFWorld games in the official format, each solved by the expert."""
