"""All-attention and Transformer-XL language models, as transformers' classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM
from transformers.utils import ModelOutput

from headprune.errors import UnsupportedModelError
from headprune.lab.models.attention import RelativeAttention
from headprune.lab.models.configuration import AllAttentionConfig, MemoryConfig, TransformerXLConfig
from headprune.lab.models.memory import SegmentMemory
from headprune.lab.models.positions import distances_for
from headprune.lab.models.vocabulary import AdaptiveSoftmax, embedding_for, head_for, tied_names
from headprune.types import Config

IGNORED = -100


@dataclass
class MemoryModelOutput(ModelOutput):
    """`past_key_values` is the memory to give with the next segment."""

    last_hidden_state: Tensor | None = None
    past_key_values: SegmentMemory | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class MemoryLMOutput(ModelOutput):
    """`losses` are those of every position, 0 where none is asked for. Where the softmax is adaptive, `logits` are
    log-probabilities; None there while training, and with `shift_labels`."""

    loss: Tensor | None = None
    losses: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: SegmentMemory | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class AttentionLayer(GradientCheckpointingLayer):
    """norm, attention, residual: all there is in a layer of All-attention."""

    def __init__(self, config: Config, num_persistent: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = RelativeAttention(config, num_persistent)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, hidden: Tensor, memory: Tensor | None, distances: Tensor, padding: Tensor | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        source = self.norm(hidden if memory is None else torch.cat([memory, hidden], dim=1))  # (batch, keys, width)
        queries = source if memory is None else source[:, memory.shape[1] :]
        answer, seen = self.attention(queries, source, distances, padding, output_attentions)
        return hidden + self.dropout(answer), seen


class FeedForwardLayer(AttentionLayer):
    """The same, and after it norm, feed-forward part, residual: a layer of Transformer-XL."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, num_persistent=0)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden_size, config.intermediate_size),
            nn.ReLU(),
            nn.Dropout(config.hidden_dropout),
            nn.Linear(config.intermediate_size, config.hidden_size),
            nn.Dropout(config.hidden_dropout),
        )

    def forward(
        self, hidden: Tensor, memory: Tensor | None, distances: Tensor, padding: Tensor | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        hidden, seen = super().forward(hidden, memory, distances, padding, output_attentions)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden)), seen


class MemoryPreTrainedModel(PreTrainedModel):
    """What transformers must know about both."""

    config_class: type[MemoryConfig] = MemoryConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ("AttentionLayer", "FeedForwardLayer")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As in Shim et al.'s code: uniform up to sqrt(1 / width) for vectors of tokens, sqrt(1 / (width layers)) for
        linear maps and persistent vectors; u and v start at zero."""
        width, layers = self.config.hidden_size, self.config.num_hidden_layers
        bound = math.sqrt(1 / (width * layers))
        if isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -math.sqrt(1 / width), math.sqrt(1 / width))
        elif isinstance(module, nn.Linear):
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, RelativeAttention):
            init.zeros_(module.u)
            init.zeros_(module.v)
            if module.num_persistent:
                init.uniform_(module.persistent_keys, -bound, bound)
                init.uniform_(module.persistent_values, -bound, bound)


class MemoryModel(MemoryPreTrainedModel):
    """Token vectors, layers, memory. The two families differ in their layers alone."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = embedding_for(config)
        self.distances = distances_for(config)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(self._layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.final_norm else nn.Identity()
        self.post_init()

    def _layer(self, config: Config) -> nn.Module:
        raise TypeError("MemoryModel is built as AllAttentionModel or TransformerXLModel.")

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: SegmentMemory | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: object,
    ) -> Any:
        config = self.config
        hidden = self._vectors(input_ids, inputs_embeds)  # (batch, positions, width)
        memory = self._usable(past_key_values, hidden)
        keys = hidden.shape[1] + (memory[0].shape[1] if memory else 0)
        reach = keys if config.span is None else min(config.span + 1, keys)
        distances = self.dropout(self.distances(reach, hidden))
        padding = _padding(attention_mask, hidden.shape[1], keys)
        inputs: list[Tensor] = []
        maps: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            inputs.append(hidden)
            hidden, seen = layer(hidden, memory[place] if memory else None, distances, padding, bool(output_attentions))
            if seen is not None:
                maps.append(seen)
        hidden = self.norm(hidden)
        remembered = None
        if use_cache if use_cache is not None else config.use_cache:
            limit = config.memory_length
            old = past_key_values
            remembered = SegmentMemory.of(inputs, limit) if old is None else old.followed_by(inputs, limit)
        output = MemoryModelOutput(
            last_hidden_state=hidden,
            past_key_values=remembered,
            hidden_states=(*inputs, hidden) if output_hidden_states else None,
            attentions=tuple(maps) if output_attentions else None,
        )
        return output if return_dict is not False else output.to_tuple()

    def _vectors(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise UnsupportedModelError("Give input_ids or inputs_embeds: one of them.")
        if inputs_embeds is None:
            inputs_embeds = self.embeddings(input_ids)
        vectors: Tensor = self.dropout(inputs_embeds * math.sqrt(self.config.hidden_size))
        return vectors

    def _usable(self, memory: SegmentMemory | None, hidden: Tensor) -> list[Tensor] | None:
        """The part of a memory that can be seen, by layer; None if there is nothing in it."""
        if memory is None:
            return None
        if not isinstance(memory, SegmentMemory):
            raise UnsupportedModelError(
                f"past_key_values is a {type(memory).__name__}; this model takes the SegmentMemory that it returned."
            )
        memory.check(len(self.layers), hidden.shape[0], hidden.shape[2])
        span = self.config.span
        kept = len(memory) if span is None else min(span, len(memory))
        if not kept:
            return None
        return [layer[:, -kept:].to(hidden.device, hidden.dtype) for layer in memory.layers]


def _padding(mask: Tensor | None, queries: int, keys: int) -> Tensor | None:
    """Which keys are padding (batch, 1, queries, keys). A position always sees itself, or padding would be NaN."""
    if mask is None:
        return None
    if mask.dim() != 2 or queries > mask.shape[1]:
        raise UnsupportedModelError(
            f"attention_mask has shape {tuple(mask.shape)}; expected (batch, positions), at least {queries} positions."
        )
    real = mask.bool()[:, -keys:]
    real = F.pad(real, (keys - real.shape[1], 0), value=True)  # (batch, keys): what the mask does not reach is real
    itself = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril(keys - queries).triu(keys - queries)
    return ~(real[:, None, None, :] | itself)


class MemoryForCausalLM(MemoryPreTrainedModel, GenerationMixin):
    """A language model: logits, loss, memory."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model = self._base(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.lm_head = head_for(config)
        self._tied_weights_keys = tied_names(config, "model.embeddings", "lm_head")
        self.post_init()

    def _base(self, config: Config) -> MemoryModel:
        raise TypeError("MemoryForCausalLM is built as AllAttentionForCausalLM or TransformerXLForCausalLM.")

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `generate` would make a cache of keys and values

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: SegmentMemory | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """`labels` are the inputs themselves and are shifted here; `shift_labels`, which transformers passes by that
        name, are what each position is to say: a segment in the middle of a text knows it to its end. -100 is left out
        of the loss."""
        shift_labels: Tensor | None = kwargs.pop("shift_labels", None)
        if labels is not None and shift_labels is not None:
            raise UnsupportedModelError("Give labels or shift_labels: one of them.")
        output = self.model(
            input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        hidden = self.dropout(output.last_hidden_state)  # (batch, positions, width)
        logits, loss = None, None
        targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED) if labels is not None else shift_labels
        adaptive = isinstance(self.lm_head, AdaptiveSoftmax)
        if targets is None or not adaptive or (shift_labels is None and not self.training):
            logits = self.lm_head(hidden[:, -logits_to_keep:] if targets is None else hidden)
        losses = None
        if targets is not None:
            losses = self._losses(hidden, targets, logits)  # (batch, positions)
            count = (targets != IGNORED).sum().clamp_min(1)
            loss = losses.sum() / (count if num_items_in_batch is None else num_items_in_batch)
        found = MemoryLMOutput(
            loss=loss,
            losses=losses,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )
        return found if return_dict is not False else found.to_tuple()

    def _losses(self, hidden: Tensor, targets: Tensor, logits: Tensor | None) -> Tensor:
        """The loss of every position; 0 where none is asked for."""
        targets = targets.to(hidden.device)
        if logits is not None:
            flat = logits.float().transpose(1, 2)  # (batch, vocabulary, positions)
            return F.cross_entropy(flat, targets, reduction="none", ignore_index=IGNORED)
        assert isinstance(self.lm_head, AdaptiveSoftmax), "others give logits"
        asked = targets != IGNORED
        losses = self.lm_head.losses(hidden[asked], targets[asked])
        return torch.zeros(targets.shape, device=hidden.device).masked_scatter(asked, losses)

    def _expand_inputs_for_generation(self, expand_size: int = 1, **kwargs: object) -> Any:
        """A memory that was given is repeated for every beam, as the prompts are."""
        memory = kwargs.get("past_key_values")
        if isinstance(memory, SegmentMemory) and expand_size > 1:
            kwargs["past_key_values"] = memory.repeated(expand_size)
        return super()._expand_inputs_for_generation(expand_size=expand_size, **kwargs)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: object, **kwargs: object) -> Any:
        if self.config.cutoffs and new_num_tokens is not None:
            raise UnsupportedModelError(
                "An adaptive vocabulary cannot be resized: its parts are cut by frequency. Build a new model."
            )
        return super().resize_token_embeddings(new_num_tokens, *args, **kwargs)


class AllAttentionModel(MemoryModel):
    config_class = AllAttentionConfig

    def _layer(self, config: Config) -> nn.Module:
        return AttentionLayer(config, config.num_persistent)


class TransformerXLModel(MemoryModel):
    config_class = TransformerXLConfig

    def _layer(self, config: Config) -> nn.Module:
        return FeedForwardLayer(config)


class AllAttentionForCausalLM(MemoryForCausalLM):
    """Sukhbaatar et al. 2019 as Shim et al. 2021 have it: norm first, a fixed span, no adaptive span."""

    config_class = AllAttentionConfig

    def _base(self, config: Config) -> MemoryModel:
        return AllAttentionModel(config)


class TransformerXLForCausalLM(MemoryForCausalLM):
    """Dai et al. 2019, norm first."""

    config_class = TransformerXLConfig

    def _base(self, config: Config) -> MemoryModel:
        return TransformerXLModel(config)


for _config, _base, _causal in (
    (AllAttentionConfig, AllAttentionModel, AllAttentionForCausalLM),
    (TransformerXLConfig, TransformerXLModel, TransformerXLForCausalLM),
):
    AutoModel.register(_config, _base, exist_ok=True)
    AutoModelForCausalLM.register(_config, _causal, exist_ok=True)
