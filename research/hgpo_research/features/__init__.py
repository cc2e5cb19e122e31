"""Features of actions for the policy `softmax`."""
