"""Which options and callbacks of Lightning's Trainer work in a run: those that are named here, and each is tested.

A run counts steps, never runs out of text, and validates, records and saves at the same steps. Lightning also counts
epochs, and some callbacks rely on them. So one of Lightning's epochs is what lies between two validations.
"""

import inspect
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer

from model.mistakes import Mistake, check_range, listed

OPTIONS = """accelerator accumulate_grad_batches benchmark callbacks default_root_dir detect_anomaly deterministic
    devices enable_progress_bar gradient_clip_algorithm gradient_clip_val limit_val_batches
    log_every_n_steps logger max_steps max_time num_nodes precision profiler strategy val_check_interval"""
STRATEGIES = ["auto", "ddp", "ddp_find_unused_parameters_true"]
CALLBACKS = "EarlyStopping LearningRateMonitor ModelCheckpoint RichProgressBar Timer TQDMProgressBar"
BASES = "Callback Checkpoint ProgressBar"  # what these and a user's own are derived from

# The Trainer's other options, with their defaults.
OTHERS = {
    name: option.default
    for name, option in inspect.signature(Trainer).parameters.items()
    if name not in OPTIONS.split()
}


def check_trainer(options: Namespace) -> None:
    """Raises a `Mistake` for values of the Trainer's options with which a run does not work."""
    check_range("trainer.log_every_n_steps", options.log_every_n_steps, 1)
    check_range("trainer.accumulate_grad_batches", options.accumulate_grad_batches, 1)
    check_range("trainer.gradient_clip_val", options.gradient_clip_val, 0)
    check_range("trainer.val_check_interval", options.val_check_interval, 1, whole=True)  # in steps
    if options.strategy not in STRATEGIES:
        raise Mistake(
            f"trainer.strategy must be {listed(STRATEGIES, 'or')}, not {options.strategy}: each device holds the whole "
            "model, and each process runs train.py from its beginning"
        )


def working_callbacks(option: Any) -> list[Callback]:
    """Returns the user's callbacks. Raises a `Mistake` for one of Lightning, or derived from it, that does harm."""
    callbacks, working = as_list(option), CALLBACKS.split()
    for kind in {base for callback in callbacks for base in type(callback).__mro__}:
        if kind.__module__.startswith("lightning.") and kind.__name__ not in working + BASES.split():
            raise Mistake(
                f"trainer.callbacks: {kind.__name__} is not known to work in a run, where train.py decides what is "
                f"read, learned and saved: use {listed(working, 'or')}, or one of your own"
            )
    return callbacks


def trainer_arguments(options: Namespace) -> dict[str, Any]:
    """Returns all arguments of the Trainer, defaults too: Lightning would take those from PL_... variables."""
    steps_in_epoch = options.val_check_interval or 10**9  # null: one epoch, so one validation, at the end
    return {
        **OTHERS,
        **vars(options),
        "max_epochs": -1,  # trainer.max_steps ends the run
        "limit_train_batches": steps_in_epoch * options.accumulate_grad_batches,
        "val_check_interval": None,  # at the end of each epoch
        "reload_dataloaders_every_n_epochs": 1,  # the first epoch of a resumed run may be shorter than the others
        "enable_model_summary": False,
    }


def as_list(value: Any) -> list:
    """Returns a Trainer option as a list of objects. It may be one object, a list, null or (for a logger) a bool."""
    if isinstance(value, list):
        return value
    return [] if value is None or isinstance(value, bool) else [value]
