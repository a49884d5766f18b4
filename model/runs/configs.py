"""A run's config.yaml: the options in it, and that they are plain values."""

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from model.checks import Mistake
from model.files import reading

# Groups of options, an outer one before those within.
SECTIONS = (
    *("data", "model", "model.gpt", "model.optimizer", "model.schedule"),
    *("trainer", "attention", "samples", "checkpoints"),
)
# Of the Trainer's options those that take classes, and what the texts of all others look like: no dotted name of a
# class, path, address or YAML.
TAKE_CLASSES = ("trainer.callbacks", "trainer.logger", "trainer.plugins")
PLAIN_TEXT = re.compile(r"[\w:,+ -]*")


class _PlainLoader(yaml.SafeLoader):
    """Without references, by which a few lines can describe lists of any length."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to itself")
        return super().compose_node(parent, index)


def read_config(path: Path) -> dict[str, Any]:
    """The values of a config.yaml; {} if there is none. Raises a `Mistake` if it is not YAML of plain values."""
    if not path.exists():
        return {}
    with reading(path):
        content = path.read_bytes()
    try:
        settings = yaml.load(content.decode(), _PlainLoader)
    except (ValueError, TypeError, OverflowError, RecursionError, yaml.YAMLError):
        settings = None
    if not isinstance(settings, dict):
        raise Mistake(f"{path} is damaged: it is not YAML with options")
    return settings


def plain_config(path: Path, typed: Collection[str]) -> Path | str:
    """What to give to --config for the config of a run: its path, or its options as YAML.

    A run may come from a stranger, and the Trainer's options may be any class, or the name of a file that holds one.
    So any but a plain value raises a `Mistake`, unless the person has `typed` the option too: theirs is taken.
    """
    settings = read_config(path)
    if not {"model", "data", "trainer"} <= settings.keys():
        raise Mistake(f"{path} is damaged: restore the options that the run was started with")
    not_plain = [name for name, value in _options(settings) if not _is_plain(name, value, path.parent)]
    for name in not_plain:
        trainer, option = settings["trainer"], name.removeprefix("trainer.")
        is_typed = any(f"{one}.".startswith(f"{name}.") for one in typed)
        if not is_typed or not isinstance(trainer, dict) or trainer.pop(option, None) is None:
            raise Mistake(
                f"{path}: {name} may name code, or a file that does: if you mean it, repeat the --config or the "
                "options that the run was started with"
            )
    return yaml.safe_dump(settings) if not_plain else path


def _options(settings: dict[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a config with their full names, such as trainer.max_steps."""
    for key, value in settings.items():
        name = f"{section}.{key}".lstrip(".")
        if name in SECTIONS and isinstance(value, dict):
            yield from _options(value, name)
        else:
            yield name, value


def _is_plain(name: str, value: Any, folder: Path) -> bool:
    """Whether a value in a config of `folder` names nothing that the parser would import or open."""
    section, _, option = name.rpartition(".")
    if section not in ("", *SECTIONS) or not option.isidentifier() or name == "config" or option == "class_path":
        return False
    if isinstance(value, list):
        return all(_is_plain(name, item, folder) for item in value)
    if isinstance(value, str) and section == "trainer" and option != "default_root_dir":
        is_file = any(os.path.exists(path) for path in (value, folder / value))  # noqa: PTH110 (as Path.is_file)
        return name not in TAKE_CLASSES and not is_file and PLAIN_TEXT.fullmatch(value) is not None
    return name not in SECTIONS and isinstance(value, bool | int | float | str | None)
