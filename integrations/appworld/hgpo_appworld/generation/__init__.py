"""A small AppWorld of our own: people, their data in seven apps, and tasks with evaluations and solutions."""
