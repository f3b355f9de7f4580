"""What a workspace is called in the dashboard: the name of its folder, and more of its path where two folders share a name.

The names that were given out are kept in Prefect's folder; the dashboard finds the workspaces, and so their reports, by them."""

import json
import re
from pathlib import Path

from storage.files.atomic import write_json
from storage.files.hashing import digest
from storage.files.locks import file_lock

_LABELS = "longtake-workspaces.json"


def artifact_key(text: str) -> str:
    """Prefect's keys of artifacts: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def label_workspace(home: Path, root: Path) -> str:
    """The label of a workspace on this Prefect folder; one that is new gets its own, for good."""
    home.mkdir(parents=True, exist_ok=True)
    with file_lock(home / f"{_LABELS}.lock"):
        known = labelled_workspaces(home)
        for label, path in known.items():
            if path == str(root):
                return label
        name = artifact_key(root.name) or "workspace"
        names = (name, artifact_key(f"{root.parent.name}-{name}"), f"{name}-{digest(str(root))[:8]}")
        label = next(each for each in names if each not in known)
        write_json(home / _LABELS, {**known, label: str(root)})
    return label


def labelled_workspaces(home: Path) -> dict[str, str]:
    """Label -> path. A file that is damaged is as good as none: runs label their workspaces again."""
    try:
        found = json.loads((home / _LABELS).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(label): str(path) for label, path in found.items()} if isinstance(found, dict) else {}
