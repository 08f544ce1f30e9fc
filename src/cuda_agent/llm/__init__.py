"""Chat clients over the OpenAI protocol: streaming, retries, tokens and prices, keys. Knows nothing of agents."""
