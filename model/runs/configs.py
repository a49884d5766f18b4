"""A run's config.yaml: its checksum, the options in it, and that they are plain values."""

import logging
import os
import re
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from model.checks import Mistake
from model.files import reading

log = logging.getLogger(__name__)
CHECKSUM_LINE = b"# CRC-32 of the lines above: %08x\n"
CHECKSUM = re.compile(rb"# CRC-32 of the lines above: ([0-9a-f]{8})")

# Groups of options, an outer one before those within.
SECTIONS = (
    *("data", "model", "model.gpt", "model.optimizer", "model.schedule"),
    *("trainer", "attention", "samples", "checkpoints"),
)
OTHER_TEXT = {"data.corpus", "data.files", "data.dataset"}  # options that say which text
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


def with_checksum(config: str) -> bytes:
    """The content of config.yaml. A single changed byte may be another learning rate, which YAML cannot notice."""
    return config.encode() + CHECKSUM_LINE % zlib.crc32(config.encode())


def check_config(path: Path) -> None:
    """Raises a `Mistake` unless a run's config.yaml has the sections that every run writes; warns if it was changed."""
    if not {"model", "data", "trainer"} <= read_config(path).keys():
        raise Mistake(f"{path} is damaged: restore the options that the run was started with")
    text = path.read_bytes()
    if (written := CHECKSUM.search(text)) and int(written[1], 16) != zlib.crc32(text[: written.start()]):
        log.warning("%s is not as this run wrote it: unless you have edited it, it is damaged.", path)


def options_in(settings: dict[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a config with their full names, such as trainer.max_steps."""
    for key, value in settings.items():
        name = f"{section}.{key}".lstrip(".")
        if name in SECTIONS and isinstance(value, dict):
            yield from options_in(value, name)
        else:
            yield name, value


def check_sections(path: Path) -> None:
    """Raises a `Mistake` if a config holds anything but options where it should have a group of them."""
    for name, value in options_in(read_config(path)):
        if name in SECTIONS:
            raise Mistake(f"{path}: {name} must hold options, not {value!r}; leave it out for the defaults")


def typed_values(args: list[str]) -> Iterator[tuple[str, str]]:
    """The options in `args` without their dashes, and what is given to each."""
    for arg, following in pairwise([*args, ""]):
        name, has_value, value = arg.partition("=")
        if name.startswith("-"):
            yield name.lstrip("-").rstrip("+"), value if has_value else following


def typed_configs(args: list[str]) -> list[Path]:
    """The files after --config. What is no file is left to the parser, which has a sentence for it."""
    given = [value for name, value in typed_values(args) if name in ("config", "c")]
    return [Path(path) for path in given if os.path.isfile(path)]  # noqa: PTH113 (as Path.is_file)


def typed_options(args: list[str], in_configs: bool = True) -> set[str]:
    """The full names of the options in `args`, in groups such as --data '{...}', and `in_configs` that they name."""
    configs = typed_configs(args) if in_configs else []
    typed = {name for path in configs for name, _ in options_in(read_config(path))}
    for name, value in typed_values(args):
        group = yaml.safe_load(value) if name in SECTIONS and value.startswith("{") else None
        typed |= {name, *(option for option, _ in options_in(group or {}, name))}
    return typed


def plain_config(path: Path, args: list[str]) -> Path | str:
    """What to give to --config for the config of a run: its path, or its options as YAML.

    A run may come from a stranger, and the Trainer's options may be any class, or the name of a file that holds one.
    So any but a plain value raises a `Mistake`, unless the person gives the option too, in `args`: theirs is taken.
    """
    settings = read_config(path)
    not_plain = [name for name, value in options_in(settings) if not is_plain(name, value, path.parent)]
    for name in not_plain:
        trainer, option = settings.get("trainer"), name.removeprefix("trainer.")
        is_typed = name in typed_options(args) and isinstance(trainer, dict)
        if not is_typed or trainer.pop(option, None) is None:
            raise Mistake(
                f"{path}: {name} may name code, or a file that does: if you mean it, repeat the --config or the "
                "options that the run was started with"
            )
    return yaml.safe_dump(settings) if not_plain else path


def is_plain(name: str, value: Any, folder: Path) -> bool:
    """Whether a value in a config of `folder` names nothing that the parser would import or open."""
    section, _, option = name.rpartition(".")
    if section not in ("", *SECTIONS) or not option.isidentifier() or name == "config" or option == "class_path":
        return False
    if isinstance(value, list):
        return all(is_plain(name, item, folder) for item in value)
    if isinstance(value, str) and section == "trainer" and option != "default_root_dir":
        is_file = any(os.path.exists(path) for path in (value, folder / value))  # noqa: PTH110 (as Path.is_file)
        return name not in TAKE_CLASSES and not is_file and PLAIN_TEXT.fullmatch(value) is not None
    return name not in SECTIONS and isinstance(value, bool | int | float | str | None)
