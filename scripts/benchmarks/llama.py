"""llama.cpp as a contender of `generate`: it writes one text at a time with the weights of a GPT, from a GGUF file."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from model.gguf import to_gguf
from model.gpt import GPT
from model.huggingface import optional_package


def build_llama(gpt: GPT, quantized: bool, **sampling: float) -> Callable[..., Tensor]:
    """(prompt (1, T), max_new_tokens=...) -> prompt and text; `quantized` to 8 bits a weight, llama.cpp's q8_0."""
    llama_cpp = optional_package("llama_cpp")
    with tempfile.TemporaryDirectory() as folder:
        whole, small = Path(folder, "whole.gguf"), Path(folder, "small.gguf")
        vocab = {chr(0x4E00 + token): token for token in range(1, gpt.config.vocab_size)}  # any names will do
        end = [{"id": 0, "content": "<|endoftext|>"}]
        files = {"tokenizer.json": {"model": {"vocab": vocab, "merges": []}, "added_tokens": end}}
        sizes = {"vocab_size": gpt.config.vocab_size, "end_of_text": 0}
        to_gguf(gpt, whole, SimpleNamespace(name="bytes", **sizes, huggingface_files=lambda: files))
        if quantized:
            options = llama_cpp.llama_model_quantize_default_params()
            options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
            llama_cpp.llama_model_quantize(str(whole).encode(), str(small).encode(), options)
        llama = llama_cpp.Llama(
            str(small if quantized else whole),
            n_ctx=gpt.config.context_length,
            n_threads=torch.get_num_threads(),
            n_threads_batch=torch.get_num_threads(),
            verbose=False,
        )

    def write(prompt: Tensor, max_new_tokens: int) -> Tensor:
        text = llama.generate(prompt[0].tolist(), top_p=1.0, min_p=0.0, repeat_penalty=1.0, **sampling)
        return torch.cat((prompt, torch.tensor([[*itertools.islice(text, max_new_tokens)]])), dim=1)

    return write
