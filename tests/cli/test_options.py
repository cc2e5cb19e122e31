"""Options are declared once: environment, configuration and commands agree with `hgpo_envs.episode_options`; help."""

import dataclasses
import inspect

import pytest
from command import arguments_of, every_command, outcome

import hgpo_envs.episode_options
from hgpo_envs.env import TextEnv
from hgpo_envs.episode import Settings
from hgpo_envs.episode_options import EpisodeOptions
from hgpo_train.cli.options import EpisodeOptions as CommandOptions
from hgpo_train.field_docs import fields_in_source
from hgpo_train.settings import field_docs
from hgpo_train.training.config import EnvironmentConfig

NAMES = {field.name for field in dataclasses.fields(EpisodeOptions)}


def test_the_environment_has_the_defaults_of_the_options():
    written = inspect.signature(TextEnv).parameters
    assert {
        name: written[name].default for name in NAMES
    } == EpisodeOptions().episode_options()


def test_settings_configuration_and_commands_have_the_options():
    for cls in (Settings, EnvironmentConfig):
        assert {field.name for field in dataclasses.fields(cls)} >= NAMES
    configured = EnvironmentConfig().episode_options()
    assert configured == EpisodeOptions(action_format="response").episode_options()
    source = inspect.getsource(hgpo_envs.episode_options)
    assert {
        name: field.doc for name, field in fields_in_source(source).items()
    } == field_docs(EpisodeOptions)
    assert {
        name: eval(field.default) for name, field in fields_in_source(source).items()
    } == vars(EpisodeOptions())
    given = {field.name for field in dataclasses.fields(CommandOptions)}
    assert given & NAMES == {"history_length", "max_steps", "action_format"}


@pytest.mark.parametrize("width", [80, 120])
def test_help_fits_and_explains_every_option(width):
    for words, command in every_command().items():
        code, shown = outcome(*words, "--help", COLUMNS=str(width))
        assert code == 0, shown
        lines = shown.splitlines()
        assert max(map(len, lines)) <= width
        first = [
            line.removeprefix("  ").partition(" ")[0].rstrip(",") for line in lines
        ]
        for argument in arguments_of(command):
            assert first.count(argument.name) == 1, (words, argument.name)
            place = first.index(argument.name)
            assert lines[place][26:].strip() or lines[place + 1].startswith(" " * 26), (
                words,
                argument.name,
            )
