"""A GPT as a model of transformers. `to_huggingface` copies this file and the network beside it into a folder.

It runs there, with torch and transformers alone: AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).

Shapes: B batch, T length, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from model.gpt import GPT, GPTConfig

IGNORED = {"use_cache", "cache_position"}  # what transformers passes, and nothing here depends on


class GlassGPTConfig(PretrainedConfig):
    """The fields of a GPTConfig in `gpt`, and those that other programs look for under their usual names."""

    model_type = "glassgpt"

    def __init__(self, gpt: dict[str, Any] | None = None, **options: Any) -> None:
        fields = GPTConfig(**(gpt or {}))
        self.gpt = gpt
        self.vocab_size = fields.vocab_size
        self.hidden_size = fields.embed_dim
        self.num_hidden_layers = fields.num_layers
        self.num_attention_heads = fields.num_heads
        self.max_position_embeddings = fields.context_length
        super().__init__(**{"tie_word_embeddings": fields.tie_embeddings, "use_cache": False} | options)


class GlassGPTForCausalLM(PreTrainedModel, GenerationMixin):
    """The GPT, with the inputs and outputs of transformers' language models.

    It keeps no cache: each new token reads its text again. Texts of different lengths in one batch are read one by one.
    Not there: attentions and hidden states, resized embeddings, gradient checkpointing, assistant models.
    """

    config_class = GlassGPTConfig
    base_model_prefix = "gpt"
    accepts_loss_kwargs = False  # the loss is the mean over the batch
    _tied_weights_keys = {"gpt.head.weight": "gpt.token_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: GlassGPTConfig) -> None:
        super().__init__(config)
        self.gpt = GPT(GPTConfig(**config.gpt))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: the GPT has drawn its weights itself."""

    def get_input_embeddings(self) -> nn.Module:
        return self.gpt.token_embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.gpt.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **others: Any,
    ) -> CausalLMOutput | tuple[Tensor, ...]:
        """Logits (B, T, V) of the tokens (B, T) in `input_ids`.

        Args:
            attention_mask: (B, T), 0 for padding, on either side. Padding is not read, and positions count without it.
            labels: (B, T), usually the tokens themselves; adds the mean loss of each token after those before it.
                Padding does not count, whatever its label is, nor does the first token after it.
            logits_to_keep: return the logits of the last so many positions only; all if 0.
            return_dict: False returns a tuple; None means as the config says.
            others: those of IGNORED; all else, which would change the result or its outputs, only as None or False.
        """
        for name, value in others.items():
            if name not in IGNORED and value is not None and value is not False:
                raise ValueError(f"a {type(self).__name__} does not take {name}")
        if attention_mask is None or attention_mask.all():
            logits = self.gpt(input_ids)
        else:
            logits = torch.zeros((*input_ids.shape, self.config.vocab_size), device=input_ids.device)
            for text, is_read in enumerate(attention_mask.bool()):
                if is_read.any():
                    logits[text, is_read] = self.gpt(input_ids[text, is_read][None])[0]
        loss = None
        if labels is not None:
            targets = labels[:, 1:]
            if attention_mask is not None:
                is_read = attention_mask.bool()
                targets = targets.masked_fill(~(is_read[:, :-1] & is_read[:, 1:]), -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100)
        output = CausalLMOutput(loss=loss, logits=logits[:, -logits_to_keep:])
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> dict[str, Any]:
        """All tokens so far, at every step."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}
