"""Captions as text: tokenizer, vocabulary, references, tables and the file formats people exchange."""
