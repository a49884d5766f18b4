"""The film on a page and in a picture: its word, its heads, and what was recorded of them at each step.

Shapes: L layers, H heads, T tokens.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from model.inspection.film import SOURCE, Film
from model.inspection.formation import head_name
from model.inspection.reading import DIGITS, RecordedReading, as_json
from model.inspection.recording import Recording

RIGHT = 0  # the number of the right token in the figures of a word


def about_film(recording: Recording, film: Film, readings: Mapping[int, RecordedReading]) -> dict[str, Any]:
    """The page's data about a film, apart from what changes with the steps. readings, and "stops": see `stops`."""
    *labels, right = recording.words.labels[film.word]
    return {
        "text": "".join(labels),
        "labels": labels,
        "right": right,
        "source": SOURCE,
        "missing": film.missing,
        "finder": film.finder and head_name(film.finder),
        "writers": [head_name(head) for head in film.writers],
        "stops": stops(recording, film, readings),
    }


def stops(recording: Recording, film: Film, readings: Mapping[int, RecordedReading]) -> dict[str, int]:
    """The steps at which the film stops, by what happens there.

    writers: from here on, each of them looks one token back. leap: the probability of the right token rises most.

    readings: by step, for the steps of the film in their order, see `word_reading`.
    """
    steps = [*readings]
    if film.missing or len(steps) < 2:
        return {}
    since = recording.formation["previous_token"]
    begun = [since[name] for name in map(head_name, film.writers) if name in since]
    looking = [step for step in steps if begun and step >= max(begun)]  # the page may lack the step itself
    chances = [reading.figures["chance"] for reading in readings.values()]
    rises = np.diff(np.array(chances, dtype=float))  # NaN for None
    leap = {"leap": steps[1 + int(rises.argmax())]}
    return {"writers": looking[0]} | leap if looking else leap


def word_reading(recording: Recording, film: Film, step: int) -> RecordedReading:
    """What was recorded of the film's word at a step.

    Its figures are those of `Reading.figures` that a page shows of a short text, and of `Frame`: chance, and raises
    (L * H), by how much each head raises the finder's score of the source.
    """
    frame = recording.frame(step)
    *labels, right = recording.words.labels[film.word]
    top = frame.top[film.word]
    texts = [right, *np.unique(top).tolist()]
    figures = {
        "tokens": dict(enumerate(texts)),
        "top": np.vectorize(texts.index)(top),
        "top_probability": frame.top_probability[film.word],
        "bits": [*frame.bits[film.word, :-1], None],  # a page does not know the token after the last
        "rank": [*frame.rank[film.word, :-1], None],
        "chance": frame.chance[film.word],
        "raises": frame.raises[(film.word, *film.finder)].flatten() if film.finder else None,
    }
    return RecordedReading(labels, frame.maps[film.word], as_json(figures, DIGITS))
