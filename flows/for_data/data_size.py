"""The recipe as it is for its data: the values that are left to the size of the training split, as numbers."""

from typing import Any, TypeVar

from flows.recipe import Recipe
from storage.catalogue import DatasetSnapshot
from tasks.training.batches import EpochOver, visits_of
from tasks.training.data_size import DataSizedOptions

_Sized = TypeVar("_Sized", bound=DataSizedOptions)


def recipe_for_data(recipe: Recipe, snapshot: DatasetSnapshot, notes: list[str]) -> Recipe:
    """`auto` becomes the number that the annotations ask for, so results have the same keys as with that number written down.
    What is not as usual is noted, with the setting that changes it."""
    if recipe.captioner is None:
        return recipe
    counts = [len(snapshot.captions_of.get(video.id, ())) for video in snapshot.dataset.videos if video.split == "train"]
    counts = [count for count in counts if count]

    def sized(where: str, how: _Sized, captions_per_video: int = 1, epoch_over: EpochOver = "videos") -> _Sized:
        found = how.sized(int(visits_of(counts, captions_per_video, epoch_over).sum()))
        for name, usual in (("batch_size", how.usual_batch_size), ("patience", how.usual_patience)):
            asked, value = getattr(how, name), getattr(found, name)
            if asked == "auto" and value != usual:
                notes.append(f"{where}.{name} is {value}, not {usual}, with {len(counts):,} videos to train on; --set changes it")
        return found

    seeding, boosting, words, embedding = recipe.seeding, recipe.boosting, recipe.words, recipe.embedding
    changes: dict[str, Any] = {"seeding": sized("seeding", seeding, seeding.captions_per_video, seeding.epoch_over)}
    if boosting is not None:
        changes["boosting"] = sized("boosting", boosting, boosting.captions_per_video, boosting.epoch_over)
    if words is not None:
        changes["words"] = words.model_copy(update={"training": sized("words.training", words.training)})
    if embedding is not None:
        how = embedding.training
        training = sized("embedding.training", how, how.captions_per_video, how.epoch_over)
        changes["embedding"] = embedding.model_copy(update={"training": training})
    return recipe.model_copy(update=changes)
