"""Caption: the trained captioner describes every video of a split."""

from dataclasses import asdict

from models.decoding.beam_search import SearchOptions
from storage.catalogue import Catalogue
from storage.errors import MissingFeatures
from storage.files.atomic import write_jsonl
from storage.options import Options
from storage.records import ArtifactRef, Split
from storage.text.references import References
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.inference.generate import rank_captions
from tasks.training.loading import open_trained


class CaptionOptions(Options):
    """Which videos are captioned, and how captions are looked for."""

    split: Split = "test"
    search: SearchOptions


@stage(version=1, device=True)
def caption(
    context: StageContext,
    options: CaptionOptions,
    captioners: tuple[ArtifactRef, ...],
    text: ArtifactRef,
    videos: ArtifactRef,
    features: ArtifactRef,
) -> StageResult:
    """Several captioners caption as an ensemble."""
    device = context.runtime.torch_device()
    vocabulary = References(context.path(text)).vocabulary
    net, access = open_trained(context, vocabulary, features, captioners)
    catalogue = Catalogue(context.path(videos), context.data)
    ids = access.usable(catalogue.ids(options.split))
    if not ids:
        reason = f"no video of the '{options.split}' split has features"
        raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")
    with progress_bar("captioning", len(ids), "videos") as shown:
        ranked = rank_captions(net, access, vocabulary, ids, options.search, device, shown.advance)
    found = [captions[0] for captions in ranked]
    write_jsonl(context.folder / "captions.jsonl", [asdict(item) for item in found])
    return StageResult(len(found), {"captions": len(found), "distinct": len({item.caption for item in found})})
