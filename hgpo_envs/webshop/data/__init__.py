"""WebShop's data: the official raw files, the build of a catalogue from them, and the task source."""
