"""How large a tiny model is: the names that configs have for their sizes, and what odd families need besides."""

from __future__ import annotations

from typing import Any

# Every name that a config may have for it. Lists and names that a config does not have are left alone.
SMALL: dict[str, Any] = {
    # widths
    **dict.fromkeys(
        ("hidden_size", "d_model", "dim", "n_embd", "word_embed_proj_dim", "embedding_size", "embed_dim", "emb_dim",
         "embedding_dim", "encoder_hidden_size", "decoder_hidden_size", "text_embed_dim", "out_hidden_size",
         "d_latents"),
        32,
    ),
    **dict.fromkeys(
        ("intermediate_size", "hidden_dim", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim",
         "n_inner",
         "d_inner", "inner_dim", "ffn_size", "ffn_hidden_size", "feed_forward_hidden_size", "encoder_intermediate_size",
         "decoder_intermediate_size"),
        48,
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "projection_dim", "proj_dim"), 16),
    # layers and heads
    **dict.fromkeys(
        ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers", "num_encoder_layers",
         "encoder_layers", "decoder_layers", "encoder_num_hidden_layers", "decoder_num_hidden_layers", "depth"),
        2,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "n_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads",
         "encoder_num_attention_heads", "decoder_num_attention_heads", "num_encoder_attention_heads",
         "num_decoder_attention_heads", "decoder_num_key_value_heads", "encoder_num_key_value_heads"),
        4,
    ),
    "num_key_value_heads": 2,
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "kv_channels", "qk_nope_head_dim", "v_head_dim"), 8),
    "qk_rope_head_dim": 4, "q_lora_rank": 12, "kv_lora_rank": 8, "rotary_dim": 4,
    # tokens and positions
    "vocab_size": 99, "type_vocab_size": 2, "entity_vocab_size": 20,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 32),
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "mask_token_id": 3,
    "cls_token_id": 1, "sep_token_id": 2, "forced_eos_token_id": None, "sliding_window": 16,
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
    # pictures, sound and time
    "image_size": 16, "patch_size": 4, "num_frames": 2, "tubelet_size": 1, "temporal_patch_size": 1,
    "spatial_merge_size": 1, "num_queries": 5, "num_query_tokens": 4, "num_latents": 4, "num_mel_bins": 8,
    "codebook_size": 16, "num_codebooks": 2, "num_self_attends_per_block": 2, "num_blocks": 1,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    # state-space layers, of which hybrids have some
    "state_size": 4, "mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 1, "mamba_n_heads": 4, "mamba_d_head": 8,
    "time_step_rank": 4,
    # what is spread over several parts and must agree
    "output_channels": 32, "fpn_hidden_size": 32, "coordinate_size": 6, "shape_size": 4, "mm_tokens_per_image": 4,
    "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "context_size": 16,
    "prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2], "condition_dim": 32, "audio_hidden_size": 32,
    "blank_token_id": 98,
    # nothing at random
    **dict.fromkeys(
        ("dropout", "attention_dropout", "hidden_dropout", "layerdrop", "encoder_layerdrop", "decoder_layerdrop"), 0.0
    ),
}  # fmt: skip

# Tried one after the other until a model can be built and run: what some families insist on.
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 4, "head_dim": 4},  # multi-head latent attention: the width of its rotary part
    {"image_size": 32},
    {"num_key_value_heads": 4, "image_size": 32},
    {"num_key_value_heads": 1},
    {"num_experts_per_tok": 1},
    {"head_dim": None},
    {"mrope_section": [2, 1, 1]},
    {"mrope_section": [1, 1, 0]},
    {"image_size": 64, "patch_size": 16},
)


def _each(types: tuple[str, ...], sizes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {model_type: dict(sizes) for model_type in types}


ODD: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
    "phi3": {"original_max_position_embeddings": 64, "sliding_window": None},
    "phi4_multimodal": {"sliding_window": None},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "gemma3_text": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "whisper": {"max_source_positions": 10, "max_target_positions": 24, "num_key_value_heads": 4},
    "wav2vec2": {"conv_dim": (16, 16), "conv_kernel": (4, 3), "conv_stride": (2, 2), "num_feat_extract_layers": 2,
                 "mask_time_length": 2},
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 4, "v_head_dim": 6, "n_group": 2},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2},
    "t5": {"decoder_start_token_id": 0},
    "mt5": {"decoder_start_token_id": 0},
    "swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "num_attention_heads": [2, 4]},
    "all_attention": {"num_persistent": 12, "memory_length": 8},
    "transformer_xl": {"memory_length": 8, "cutoffs": [20, 60]},
    "falcon": {"alibi": False, "new_decoder_architecture": False, "multi_query": False},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8],
                 "attn_layers": ["local", "lsh"], "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4,
                 "num_buckets": 2, "hash_seed": 0},
    **_each(("blip-2", "instructblip", "instructblipvideo"), {"image_token_index": 90}),
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "canine": {"downsampling_rate": 2},
    **_each(("led", "longformer"), {"attention_window": 4}),  # shorter than the text; 512 takes long
    "levit": {"image_size": 128},
    "mobilevit": {"image_size": 128, "patch_size": 2},
    "videoprism": {"vision_config": {"image_size": 36}},
    "videoprism_vision_model": {"image_size": 36},
    **_each(("pvt", "pvt_v2"), {"image_size": 64}),
    **_each(
        ("big_bird", "bigbird_pegasus"), {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
    ),
    **_each(("longformer", "led"), {"attention_window": 4}),
    "diffllama": {"num_attention_heads": 8, "num_key_value_heads": 4},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "bridgetower": {"text_config": {"hidden_size": 128}, "vision_config": {"hidden_size": 128}, "hidden_size": 128},
    "bros": {"hidden_size": 64},
    "lilt": {"hidden_size": 48},
    "zamba": {"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid"] * 2},  # they share one attention
    "vjepa2": {"crop_size": 32, "frames_per_clip": 4, "patch_size": 16},
    # Their values have as many heads as their queries.
    **_each(("nemotron3_diarization_audio", "nemotron3_5_transcribe_asr_audio"), {"num_key_value_heads": 4}),
    "nemotron3_diarization": {"audio_config": {"num_key_value_heads": 4}},
    "nemotron3_5_transcribe_audio": {
        "asr_config": {"num_key_value_heads": 4}, "diarization_config": {"audio_config": {"num_key_value_heads": 4}}
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layers_block_type": ["mamba", "attention"]},
    "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention"],
                   "layer_types": ["linear_attention", "full_attention"]},
    "gradium_phonon_tts": {"num_key_value_heads": 4},  # its fused weights are cut into three equal parts
    "sam3_lite_text_text_model": {"num_hidden_layers": 4},  # the first and the last layer are convolutions
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    **_each(
        ("detr", "conditional_detr", "dab-detr", "deformable_detr", "table-transformer"),
        {"use_timm_backbone": False, "backbone": None, "backbone_kwargs": None, "use_pretrained_backbone": False,
         "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 8, 8],
                             "depths": [1, 1, 1, 1], "out_features": ["stage4"]}},
    ),
    **_each(
        ("depth_anything", "prompt_depth_anything", "zoedepth"),
        {"backbone_config": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
         "neck_hidden_sizes": [16, 16, 16, 16]},
    ),
}  # fmt: skip

KINDS_OF_LAYERS = ("layer_types", "layers_block_type", "mlp_layer_types")
