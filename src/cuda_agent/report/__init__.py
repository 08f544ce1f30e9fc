"""Shows saved records as tables, drawings and one self-contained page, and records audits. Never imports torch."""
