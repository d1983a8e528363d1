"""Language models with a memory: All-attention (Sukhbaatar et al. 2019) and Transformer-XL (Dai et al. 2019)."""
