"""Options in arguments and in files: they are parsed once each, and laid over one another."""

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from model.files import content_of
from model.mistakes import Mistake, parsing, with_hint

# Groups of options, an outer one before those within.
SECTIONS = ["data", "model", "model.gpt", "model.optimizer", "model.schedule", "trainer"]
SECTIONS += ["attention", "samples", "checkpoints"]
# Of the Trainer's options those that take classes, and what the texts of all others look like: no dotted name of a
# class, path, address or YAML.
TAKE_CLASSES = ("trainer.callbacks", "trainer.logger", "trainer.plugins")
PLAIN_TEXT = re.compile(r"[\w:,+ -]{0,100}")


def parse(parser: ArgumentParser, given: list[str] | str, place: str = "") -> Namespace:
    """The options in arguments, or in a text of YAML; none that they leave open.

    Args:
        parser: with exit_on_error=False.
        place: begins the sentence of a mistake.

    Raises a `Mistake` with what the parser says, and for a group of options that is something else.
    """
    try:
        if isinstance(given, str):
            options = parser.parse_string(given, defaults=False)
        else:
            options = parser.parse_args(given, defaults=False)
    except argparse.ArgumentError as error:
        raise Mistake(f"{place}{with_hint(error.message)}") from error
    for name, group in parser.get_defaults().items(branches=True):
        if isinstance(group, Namespace) and not isinstance(options.get(name, group), Namespace):
            raise Mistake(f"{place}{name} must hold options; leave it out for the defaults")
    return options


def layered(parser: ArgumentParser, *layers: Namespace) -> Namespace:
    """All options: of each what the last of these layers says, or its default."""
    options = parser.get_defaults()
    for layer in layers:
        options.update(layer)
    return options


def read_config(path: Path) -> dict[str, Any]:
    """The values of a config.yaml; {} if there are none. Raises a `Mistake` if it is not YAML of plain values."""
    if not (content := content_of(path)):
        return {}
    with parsing(path):
        # By references a few lines can describe lists of any length.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content)):
            raise Mistake("it refers to itself")
        settings = yaml.safe_load(content)
        if not isinstance(settings, dict):
            raise Mistake("it holds no options")
        return settings


def plain_config(path: Path, typed: Iterable[str]) -> str:
    """The options of a run's config, as YAML, without those of the Trainer that are `typed` too: theirs are taken.

    A run may come from a stranger, and the Trainer's options may be any class, or the name of a file that holds one:
    any but a plain value raises a `Mistake`.
    """
    settings = read_config(path)
    if not all(isinstance(settings.get(part), dict) for part in ("model", "data", "trainer")):
        raise Mistake(f"{path} is damaged: restore the options that the run was started with")
    if settings["data"].get("documents") == "file":  # which had a choice in earlier versions
        del settings["data"]["documents"]
    if isinstance(settings.get("attention"), dict):
        settings["attention"].pop("early_steps", None)  # which earlier versions had too
    for name in typed:
        section, _, option = name.partition(".")
        if section == "trainer":
            settings["trainer"].pop(option.partition(".")[0], None)
    for name, value in _flat(settings):
        if not _is_plain(name, value):
            raise Mistake(
                f"{path}: {name} may name code, or a file that does: if you mean it, repeat the --config or the "
                "options that the run was started with"
            )
    return yaml.safe_dump(settings)


def _flat(settings: dict[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Every option by its full name."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{section}{key}.")
        else:
            yield f"{section}{key}", value


def _is_plain(name: str, value: Any) -> bool:
    """Whether an option names nothing that the parser would import or open."""
    section, _, option = name.rpartition(".")
    if section not in ("", *SECTIONS) or name in (*SECTIONS, "config"):
        return False
    if option == "class_path" or not option.isidentifier():
        return False
    if isinstance(value, list):
        return all(_is_plain(name, item) for item in value)
    if isinstance(value, str) and section == "trainer" and option != "default_root_dir":
        return name not in TAKE_CLASSES and bool(PLAIN_TEXT.fullmatch(value)) and not Path(value).exists()
    return isinstance(value, bool | int | float | str | None)
