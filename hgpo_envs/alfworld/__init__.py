"""ALFWorld: household tasks in text, played by a native rules engine."""
