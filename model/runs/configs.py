"""Options from the command line, from YAML files and from the config of a run.

`parse` returns the options that one source sets; `layered` then lays all sources over each other and the defaults.
"""

import argparse
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from model.files import content_of
from model.mistakes import Mistake, parsing
from model.runs.terminal import with_hint

# These options of the Trainer take classes, so a run's config may not set them to a string.
CLASS_OPTIONS = ("trainer.callbacks", "trainer.logger")
CODE_OPTIONS = ("model.optimizer.algorithm", "data.corpus")  # a value with a dot is imported
# How options begin that make no difference to what is learned.
NOT_COMPARED = (
    "wandb",
    "code_difference",
    "checkpoints.",
    "recording.",
    "samples.",
    "data.cache_dir",
    "trainer.default_root_dir",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.max_time",
    "trainer.profiler",
)
TEXTS = ("data.corpus", "data.files", "data.dataset")  # each names a text, instead of the others
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C library needs a tenth of the time
DEEPEST = 100  # levels of nesting: the C library crashes at a hundred thousand
# Strings that the Trainer's other options may have: no dotted class name, no path, no URL, no YAML.
PLAIN_TEXT = re.compile(r"[\w:,+ -]{0,100}")


def parse(parser: ArgumentParser, source: list[str] | str, place: str = "") -> Namespace:
    """Parses arguments or a YAML text. Returns only the options that the source sets, without defaults.

    Args:
        parser: made with exit_on_error=False.
        place: begins the message of an error; says where the source is from.

    Raises a `Mistake` with the parser's message, or if a group of options is set to something else ("model: 3").
    """
    try:
        if isinstance(source, str):
            options = parser.parse_string(source, defaults=False)
        else:
            options = parser.parse_args(source, defaults=False)
    except argparse.ArgumentError as error:
        raise Mistake(f"{place}{with_hint(error.message)}") from error
    for name, group in defaults_of(parser).items(branches=True):
        if isinstance(group, Namespace) and not isinstance(options.get(name, group), Namespace):
            raise Mistake(f"{place}{name} is a group of options, not a value: leave it out to use the defaults")
    return options


@functools.lru_cache(1)
def defaults_of(parser: ArgumentParser) -> Namespace:
    """Returns the default of each option. Finding them takes as long as parsing. The caller must not change them."""
    return parser.get_defaults()


def layered(parser: ArgumentParser, *layers: Namespace) -> Namespace:
    """Returns all options: each has the value of the last layer that sets it, else its default."""
    options = defaults_of(parser).clone()
    options.update(merged(*layers))
    return options


def names_text(options: Namespace) -> bool:
    """Whether these options say which text to read."""
    return any(name in options for name in TEXTS)


def merged(*layers: Namespace) -> Namespace:
    """Returns the options that any layer sets, with the values of the last that does. A text replaces the others."""
    options = Namespace()
    for layer in layers:
        if names_text(layer):
            for name in TEXTS:
                options.pop(name, None)
        options.update(layer)
    return options


class StrictLoader(LOADER):  # type: ignore[valid-type, misc]
    """Refuses two values for one key, of which YAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise Mistake("it has an option or a group of options twice: keep one of the two")
        return mapping


def read_config(path: Path) -> dict[str, Any]:
    """Reads a config.yaml; {} if it is missing. Raises a `Mistake` unless it is YAML of plain values."""
    if not path.exists():
        return {}
    content = content_of(path)
    with parsing(path):
        depth = 0
        for event in yaml.parse(content.decode(), LOADER):
            # With aliases, a few lines can describe lists of any length, which would fill the memory.
            if isinstance(event, yaml.AliasEvent):
                raise Mistake("it has an alias, such as *name: write the value itself")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise Mistake(f"its values are nested more than {DEEPEST} levels deep")
        settings = yaml.load(content, StrictLoader)
        if not isinstance(settings, dict):
            raise Mistake("it has no options")
        return settings


def plain_config(path: Path, typed: set[str], known: set[str]) -> str:
    """Returns a run's config as YAML, without options that may name code and are also `typed`: that value is used.

    The run may come from a stranger, and an option of the Trainer may name a class to import, or a file that names one.
    So this raises a `Mistake` for an option that is not `known`, or whose value is not plain, see `check_plain`.
    """
    settings = read_config(path)
    if not all(isinstance(settings.get(group), dict) for group in ("model", "data", "trainer")):
        raise Mistake(f"{path} is damaged: restore the options that the run was started with")
    for name in typed:
        if name.startswith("trainer."):
            settings["trainer"].pop(name.split(".")[1], None)
    for name, value in flat(settings):
        if name not in known:
            raise Mistake(f"{path}: there is no option {name}")
        if name not in CODE_OPTIONS or name not in typed:
            check_plain(path, name, value)
    return yaml.safe_dump(settings)


def flat(settings: dict[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the full name and the value of every option."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{section}{key}.")
        else:
            yield f"{section}{key}", value


def compared(path: Path) -> dict[str, Any]:
    """Returns the options in a config.yaml, by their full names, that make a difference to what is learned.

    1.0 is 1 here.
    """
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in flat(read_config(path))
        if not name.startswith(NOT_COMPARED)
    }


def check_plain(path: Path, name: str, value: Any) -> None:
    """Raises a `Mistake` if the parser may import or open something for this value of an option in a run's config."""
    if not is_plain(name, value):
        raise Mistake(
            f"{path}: {name} may name code, or a file that does: if you trust it, repeat the option --{name} with "
            "which the run was started"
        )


def is_plain(name: str, value: Any) -> bool:
    if isinstance(value, list):
        return all(is_plain(name, item) for item in value)
    if not isinstance(value, str):
        return isinstance(value, bool | int | float | None)
    if name in CODE_OPTIONS:
        return "." not in value
    if name.startswith("trainer.") and name != "trainer.default_root_dir":
        return name not in CLASS_OPTIONS and bool(PLAIN_TEXT.fullmatch(value)) and not Path(value).exists()
    return True
