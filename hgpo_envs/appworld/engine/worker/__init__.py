"""The program that runs in AppWorld's interpreter. It imports nothing of this package (`python …/worker`)."""
