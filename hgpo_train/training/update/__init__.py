"""The policy update: step rows with advantages in, better weights out."""
