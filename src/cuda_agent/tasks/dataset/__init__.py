"""Publishes filtered tasks: splits, parquet, a card, statistics."""
