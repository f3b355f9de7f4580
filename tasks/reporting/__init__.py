"""The HTML report: pages, charts, attention maps, published figures, templates."""
