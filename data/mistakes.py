"""The error of this folder for what a person can mend without reading code."""


class Mistake(ValueError):
    """Options, files or data cannot be used. Its sentence says what is wrong, where, and what to write instead.

    train.py and the scripts print that sentence and exit with status 2. Every other error is one in code and gets its
    traceback, so raise this only where options and files are checked. The network has its own: model/checks.py.
    """
