"""What a trained policy and its training share: the offered plans, the dialogue in tokens, the sampler."""
