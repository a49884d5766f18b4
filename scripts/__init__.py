"""Programs for the command line; what they do is in model/ and data/."""
