"""Commands of `hgpo`, found by the entry points `hgpo.commands`."""
