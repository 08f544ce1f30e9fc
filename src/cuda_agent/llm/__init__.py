"""Chat clients over the OpenAI protocol: streaming, retries, tokens, prices and keys."""
