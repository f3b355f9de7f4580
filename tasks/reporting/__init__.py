"""The HTML report: pages, charts, attention maps, attention strip, published scores, templates."""
