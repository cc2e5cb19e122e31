"""The estimators. Each module documents equation, source, special cases, and differences of official code and paper."""
