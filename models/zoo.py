"""The published captioners. Read this first: one table says which function builds each; its options are beside it. A new one is a
file in models/captioners with an options class of its own `kind` and a builder, named in CAPTIONERS and in CaptionerOptions."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from models.captioner import Captioner
from models.captioners.g2l.captioner import G2lOptions, build_g2l
from models.captioners.gld import ShowTellOptions, TopDownOptions, build_show_tell, build_top_down
from models.captioners.glrg import GlRgOptions, build_glrg
from models.captioners.lstm import MpLstmOptions, SaLstmOptions, build_lstm
from models.captioners.recnet.captioner import RecNetOptions, build_recnet
from models.captioners.s2vt import S2vtOptions, build_s2vt
from models.captioners.vre.captioner import VreOptions, build_vre

_RecNetAndBases = SaLstmOptions | MpLstmOptions | S2vtOptions | RecNetOptions
_Others = GlRgOptions | G2lOptions | VreOptions | ShowTellOptions | TopDownOptions
CaptionerOptions = Annotated[_RecNetAndBases | _Others, Field(discriminator="kind")]

CAPTIONERS: dict[str, Callable[[Any, dict[str, int], int], Captioner]] = {
    "sa_lstm": build_lstm,
    "mp_lstm": build_lstm,
    "s2vt": build_s2vt,
    "recnet": build_recnet,
    "glrg": build_glrg,
    "g2l": build_g2l,
    "vre": build_vre,
    "show_tell": build_show_tell,
    "top_down": build_top_down,
}


def build_captioner(options: CaptionerOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    """A captioner with fresh weights from torch's global generator. feature_sizes: name -> D."""
    return CAPTIONERS[options.kind](options, feature_sizes, vocabulary_size)
