"""The training recipe (warm-up, sampling, rejection fine-tuning, value pretraining, PPO) and its environment."""
