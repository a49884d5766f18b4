"""The benchmarks of scripts/benchmark.py, a module for each subcommand, and what they share."""
