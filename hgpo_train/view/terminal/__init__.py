"""The viewer in a terminal, `hgpo view --terminal`, on the same documents as the page; needs the extra `view`."""
