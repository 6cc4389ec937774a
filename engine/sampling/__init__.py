"""How logits become a token."""
