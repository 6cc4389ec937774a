"""Tests of tokenizer, chat template, detokenizer and stop strings."""
