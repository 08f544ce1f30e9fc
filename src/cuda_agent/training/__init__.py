"""The recipe: warm-up, sampling, rejection fine-tuning, value pretraining, PPO; and the environment they train in."""
