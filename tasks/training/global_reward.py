"""GLD's global reward, from the results of two stages: the embedding of videos and captions (train_embedding) and each video's
nearest neighbour (find_neighbours)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.rewards.global_discriminative import GlobalDiscriminative, GlobalOptions, nearest_indices
from storage.errors import MissingFeatures, UsageError
from storage.neighbours import Neighbours
from storage.records import ArtifactRef
from storage.text.references import References
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageContext
from tasks.train_embedding import embed_videos
from tasks.training.loading import embedding_options, load_embedding


def open_global_reward(
    context: StageContext,
    options: GlobalOptions,
    references: References,
    features: ArtifactRef,
    embedding: ArtifactRef | None,
    neighbours: ArtifactRef | None,
    ids: Sequence[str],
) -> GlobalDiscriminative:
    """The reward of captions for the videos `ids`, which it addresses by their indices. A video without the features that the
    embedding reads is left out of all comparisons."""
    if embedding is None or (neighbours is None and options.neighbour):
        raise UsageError(
            "the global reward compares captions by an embedding, and with nearest neighbours; add the sections "
            "'embedding' and 'neighbours' to the recipe, or leave boosting.global_reward out"
        )
    device, path = context.runtime.torch_device(), context.path(embedding) / "embedding.safetensors"
    access = FeatureAccess.open(context.workspace, context.path(features), embedding_options(path).features)
    net = load_embedding(path, access, references.vocabulary).to(device)
    usable = access.usable(ids)
    if not usable:
        raise MissingFeatures(
            f"no training video has the features {', '.join(access.names)} that the embedding reads; 'longtake status' "
            "lists what is missing"
        )
    videos = torch.zeros(len(ids), net.options.size, device=device)
    index = {id: n for n, id in enumerate(ids)}
    videos[[index[id] for id in usable]] = embed_videos(net, access, usable, device)
    nearest = _nearest(Neighbours.open(context.path(neighbours))) if neighbours and options.neighbour else {}
    return GlobalDiscriminative(net, videos, nearest_indices(ids, nearest).to(device), options)


def _nearest(table: Neighbours) -> dict[str, str]:
    """training video -> its nearest neighbour, where it has one"""
    neighbours = {id: table.of(id) for id in table.ids("train")}
    return {id: found[0][0] for id, found in neighbours.items() if found}
