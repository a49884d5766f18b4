"""From text to batches: corpora, tokenizers, token files, the order of samples."""
