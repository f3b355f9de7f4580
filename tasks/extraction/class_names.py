"""What the classes of a store of class probabilities are called, and the likeliest ones."""

import numpy as np

from models.backbones.classes import class_names
from storage.features.store import FeatureStore


def class_names_of(store: FeatureStore) -> tuple[str, ...] | None:
    """The names of a store's classes; None if it holds no classes, or it is not known whose they are."""
    options = store.provenance.get("options", {})
    if options.get("output") != "classes" or options.get("weights") != "pretrained" or store.feature_shape is None:
        return None
    count = store.feature_shape[-1]
    named = store.provenance.get("classes") or class_names(options["net"], count) or ()  # a model of transformers says it itself
    return tuple(named) if len(named) == count else None


def likeliest(probabilities: np.ndarray, names: tuple[str, ...] | None, count: int) -> list[tuple[str, float]]:
    """Rows (P, K) of a video -> its likeliest classes over time, with their probabilities."""
    mean = probabilities.astype(np.float64).mean(0)
    best = mean.argsort()[::-1][:count].tolist()
    return [(names[n] if names else f"class {n}", float(mean[n])) for n in best]
