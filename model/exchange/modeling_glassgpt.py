"""Wraps a GPT as a transformers model. `to_huggingface` copies this file and the network's source into a folder.

The copy runs with torch and transformers alone: AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).

Shapes: B batch, T length, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils import can_return_tuple

from model.gpt import GPT, GPTConfig

WITHOUT_EFFECT = {"use_cache", "cache_position"}  # transformers passes these arguments, but they change nothing here


class GlassGPTConfig(PretrainedConfig):
    """Holds the fields of a GPTConfig in `gpt`, and repeats some of them under the names that other programs expect."""

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
    """A GPT with the inputs and outputs of transformers' language models.

    It has no cache: for each new token it reads the whole text again. In a batch with padding it reads text by text.
    Not supported: attentions and hidden states, resized embeddings, gradient checkpointing, assistant models.
    """

    config_class = GlassGPTConfig
    base_model_prefix = "gpt"
    accepts_loss_kwargs = False  # the loss is the mean over the batch
    _tied_weights_keys = {"gpt.lm_head.weight": "gpt.token_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: GlassGPTConfig) -> None:
        super().__init__(config)
        self.gpt = GPT(GPTConfig(**config.gpt))
        self.unset = dict(self.gpt.named_buffers()).keys() - self.gpt.state_dict().keys()
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Sets buffers that no file holds, which transformers makes anew. The GPT has initialised its weights."""
        if self.unset:
            built = GPT(self.gpt.config)
            for name in self.unset:
                self.gpt.get_buffer(name).copy_(built.get_buffer(name))
        self.unset = set()

    def get_input_embeddings(self) -> nn.Module:
        return self.gpt.token_embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.gpt.lm_head

    @can_return_tuple  # if return_dict=False, or the config says so
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutput:
        """Returns the logits (B, T, V) of the tokens (B, T) in `input_ids`.

        Args:
            attention_mask: (B, T), 0 for padding, which may be on either side. Padding is not read, and positions are
                counted without it.
            labels: (B, T), usually the same as `input_ids`. If given, the mean loss of predicting each label from the
                tokens before it is returned too. It leaves out padding and the first token after padding.
            logits_to_keep: return the logits of only this many last positions; 0 returns all.
            others: arguments in WITHOUT_EFFECT may have any value. Any other argument must be None or False, because
                this model cannot do what it asks for.
        """
        for name, value in others.items():
            if name not in WITHOUT_EFFECT and value is not None and value is not False:
                raise ValueError(f"a {type(self).__name__} does not take {name}")
        if attention_mask is None or attention_mask.all():
            logits = self.gpt(input_ids)
        else:
            logits = torch.zeros((*input_ids.shape, self.config.vocab_size), device=input_ids.device)
            for row, is_read in enumerate(attention_mask.bool()):
                if is_read.any():
                    logits[row, is_read] = self.gpt(input_ids[row, is_read][None])[0]
        loss = None
        if labels is not None:
            targets = labels[:, 1:]
            if attention_mask is not None:
                is_read = attention_mask.bool()
                targets = targets.masked_fill(~(is_read[:, :-1] & is_read[:, 1:]), -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100)
        return CausalLMOutput(loss=loss, logits=logits[:, -logits_to_keep:])

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> dict[str, Any]:
        """Passes all tokens so far at every step, since there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}
