"""Files: atomic writes, downloads, archives, files of others, and secrets in texts."""
