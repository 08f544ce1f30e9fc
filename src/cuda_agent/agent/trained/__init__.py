"""What a trained policy and its training share: the plans that are offered, the dialogue in tokens, the sampler."""
