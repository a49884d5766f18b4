"""What the processes of scripts/benchmark.py measure: gpt2.py. README.md has the method, LOG.md what was tried."""
