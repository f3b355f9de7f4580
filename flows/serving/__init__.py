"""A small local web page and HTTP API that caption what is dropped on them."""
