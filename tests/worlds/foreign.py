"""A Gymnasium environment that does not use this package."""

import string

import gymnasium
from gymnasium import spaces


class Guess(gymnasium.Env):
    """A number-guessing game with text observations and actions, Gymnasium's Text spaces and its own step limit."""

    def __init__(self, limit: int = 4, keyed: bool = False) -> None:
        text = spaces.Text(200, min_length=0, charset=string.printable)
        self.observation_space = spaces.Dict({"text": text}) if keyed else text
        self.action_space = spaces.Text(20, min_length=0)
        self.limit = limit
        self.keyed = keyed

    def _show(self, text: str):
        return {"text": text} if self.keyed else text

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(3))
        self.left = self.limit
        return self._show("Guess a number from 0 to 2."), {
            "admissible_commands": ["0", "1", "2"]
        }

    def step(self, action):
        self.left -= 1
        won = action == str(self.number)
        info = {
            "admissible_commands": ["0", "1", "2"],
            "action_valid": action in ("0", "1", "2"),
        }
        return (
            self._show("Right." if won else f"Wrong, {self.left} left."),
            float(won),
            won,
            self.left == 0,
            info,
        )


class Graded(Guess):
    """The same game with partial credit: half the reward for a wrong guess, and an end with the second guess."""

    def step(self, action):
        observation, reward, won, truncated, info = super().step(action)
        return (
            observation,
            reward or 0.5,
            won or self.left == self.limit - 2,
            truncated,
            info,
        )


class Silent(Guess):
    """The same game; it does not say whether a guess was right."""

    def step(self, action):
        observation, reward, won, truncated, info = super().step(action)
        return observation, reward, won, truncated, {**info, "is_success": None}


class Words(Guess):
    """The same game with words instead of numbers, in upper and lower case."""

    WORDS = ("say sivaorP", "take Canadian latchkey", "LOOK")

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"admissible_commands": self.WORDS}

    def step(self, action):
        number = str(self.WORDS.index(action)) if action in self.WORDS else ""
        observation, reward, won, truncated, info = super().step(number)
        return (
            observation,
            reward,
            won,
            truncated,
            {**info, "admissible_commands": self.WORDS},
        )


gymnasium.register("Foreign/Words-v0", entry_point=Words)
gymnasium.register("Foreign/Guess-v0", entry_point=Guess)
gymnasium.register("Foreign/Silent-v0", entry_point=Silent)
gymnasium.register("Foreign/Graded-v0", entry_point=Graded)
gymnasium.register(
    "Foreign/GradedThreshold-v0", entry_point=Graded, reward_threshold=0.5
)
