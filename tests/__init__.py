"""The tests; they mirror the rooms."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
