"""The committed tokenizer."""
