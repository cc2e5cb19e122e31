"""AppWorld's interpreter and official data: how they are installed."""
