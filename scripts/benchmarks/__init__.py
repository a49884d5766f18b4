"""What scripts/benchmark.py measures: one module a subcommand, over the loops and limits that they share."""
