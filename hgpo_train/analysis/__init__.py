"""What a step table's advantages rest on: statistics, and a reading of them in words."""
