"""Run folders: logging, checkpoints, samples, recording, resuming."""
