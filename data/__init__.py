"""Turns text into batches: corpora, tokenizers, files of tokens, and the order in which windows are read."""
