"""From filtered tasks to what is published: splits, parquet, a card, statistics."""
