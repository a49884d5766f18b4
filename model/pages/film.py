"""The film on a page and in a picture: its word, its two heads, and what was recorded of them at each step.

Shapes: L layers, H heads, T tokens.
"""

from typing import Any

import numpy as np

from model.inspection.film import BEGIN, SOURCE, WORD, Film, tell_film
from model.inspection.reading import DIGITS, RecordedReading, as_json
from model.inspection.recording import Recording

LENGTH = WORD + BEGIN  # tokens of the text, T
PATTERNS = {"writer": "previous_token", "finder": "induction"}
RIGHT = 0  # the number of the right token in the figures of a word


def film_of(recording: Recording) -> Film | None:
    """Returns the film of a recording as its last step shows it; None if it has no words or no maps."""
    if recording.words is None or not recording.mapped:
        return None
    return tell_film(recording.frame(recording.mapped[-1]))


def about_film(recording: Recording, film: Film) -> dict[str, Any]:
    """The page's data about a film, apart from what changes with the steps. formed: see `formed_steps`."""
    *labels, right = recording.words.labels[film.word]
    return {
        "text": "".join(labels),
        "labels": labels,
        "right": right,
        "source": SOURCE,
        "missing": film.missing,
        "formed": formed_steps(recording, film),
        **{role: place and "{}.{}".format(*place) for role, place in film.heads.items()},
    }


def formed_steps(recording: Recording, film: Film) -> dict[str, int]:
    """Since when the writer looks one token back, and the finder at what followed the same token before: by role."""
    steps = {}
    for role, place in film.heads.items():
        since = recording.formation[PATTERNS[role]]
        name = place and "{}.{}".format(*place)
        if name in since:
            steps[role] = since[name]
    return steps


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
