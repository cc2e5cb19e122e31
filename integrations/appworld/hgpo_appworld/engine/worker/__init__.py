"""The program that runs in AppWorld's interpreter, as the package `worker`. It imports nothing else of this package."""
