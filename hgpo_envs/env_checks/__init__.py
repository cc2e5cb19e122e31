"""The checks of `hgpo_envs.env_checker`, by what they look at: tasks, rollouts, states, replays and odd commands."""
