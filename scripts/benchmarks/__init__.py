"""gpt2.py holds what scripts/benchmark.py measures, README.md the method and results, LOG.md all that was tried."""
