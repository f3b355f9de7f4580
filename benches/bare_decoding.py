"""What benches/feeding.py compares with: files to resized pictures by PyAV and PIL, and no more.

python benches/bare_decoding.py FRAMES FILE [FILE ...]   FRAMES of each clip, evenly spread; 0: the files are photos"""

import sys

import av
import numpy as np
from PIL import Image

SHORT, SIDE = 256, 224


def fitted(image: Image.Image) -> np.ndarray:
    ratio = SHORT / min(image.size)
    image = image.resize((int(image.width * ratio), int(image.height * ratio)), Image.Resampling.BICUBIC)
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))


def clip(path: str, count: int) -> None:
    """Decode in order up to the last wanted frame; make RGB of the wanted ones only."""
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        wanted = [int((n + 0.5) * stream.frames / count) for n in range(count)]
        for number, frame in enumerate(container.decode(stream)):
            if number == wanted[0]:
                fitted(Image.fromarray(frame.to_ndarray(format="rgb24")))
                wanted.pop(0)
                if not wanted:
                    return
    raise ValueError(f"{path} has fewer frames than it says")


if __name__ == "__main__":
    for file in sys.argv[2:]:
        clip(file, int(sys.argv[1])) if int(sys.argv[1]) else fitted(Image.open(file).convert("RGB"))
