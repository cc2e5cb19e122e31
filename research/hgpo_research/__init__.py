"""True advantages, comparisons of estimators with them, and what only research needs."""
