"""What can go wrong around a run, tried out: see __main__.py."""
