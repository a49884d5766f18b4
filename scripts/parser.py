"""How every script answers a mistake in what was typed."""

import argparse


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one sentence, without the usage."""

    def error(self, message: str) -> None:
        script = self.prog.split()[0]  # a subcommand has its own name behind it
        self.exit(2, f"{script}: {message}; --help lists the options\n")
