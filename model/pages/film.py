"""The film on a page: the word that it shows, its two heads, and what was recorded of them at each step.

Shapes: L layers, H heads, T tokens.
"""

from collections.abc import Collection
from typing import Any

from model.inspection.film import BEGIN, SOURCE, WORD, Film, tell_film
from model.inspection.reading import DIGITS, as_json
from model.inspection.recording import Recording

LENGTH = WORD + BEGIN  # tokens of the text, T


def film_of(recording: Recording) -> Film | None:
    """Returns the film of a recording as its last step shows it; None if it has no words or no maps."""
    if recording.words is None or not recording.mapped:
        return None
    return tell_film(recording.frame(recording.mapped[-1]))


def about_film(recording: Recording, film: Film) -> dict[str, Any]:
    """The page's data about a film, apart from what changes with the steps.

    Heads are numbered layer by layer. formed: see `formed_steps`; None for a head that has not formed.
    """
    *labels, right = recording.words.labels[film.word]
    heads = recording.snapshots[-1].shape[1]
    number = {role: place and place[0] * heads + place[1] for role, place in film.heads.items()}
    return {
        "text": "".join(labels),
        "labels": labels,
        "right": right,
        "source": SOURCE,
        "missing": film.missing,
        "formed": dict.fromkeys(number) | formed_steps(recording, film),
        **number,
    }


def formed_steps(recording: Recording, film: Film) -> dict[str, int]:
    """Returns since when the writer looks one token back, and the finder at what followed the same token before."""
    patterns = {"finder": "induction", "writer": "previous_token"}
    steps = {}
    for role, place in film.heads.items():
        step = place and recording.formation[patterns[role]].get("{}.{}".format(*place))
        if step is not None:
            steps[role] = step
    return steps


def film_steps(
    recording: Recording,
    film: Film,
    steps: Collection[int],
) -> dict[int, tuple[Any, dict[str, Any]]]:
    """Returns for each step the maps of the word, (L, H, T, T), and its figures.

    The figures are those of `Reading.figures` that a page needs of a short text, and of `Frame`: chance, and
    raises (L * H), by how much each head raises the finder's score of the source.
    """
    right = recording.words.labels[film.word][-1]
    found = {}
    for step in steps:
        frame = recording.frame(step)
        top = frame.top[film.word].tolist()
        texts = list(dict.fromkeys([right, *(text for row in top for text in row)]))
        raises = frame.raises[(film.word, *film.finder)].flatten() if film.finder else None
        figures = {
            "tokens": dict(enumerate(texts)),  # the right token is number 0
            "top": [[texts.index(text) for text in row] for row in top],
            "top_probability": frame.top_probability[film.word],
            "bits": [*frame.bits[film.word, :-1].tolist(), None],  # a page does not know the token after the last
            "rank": [*frame.rank[film.word, :-1].tolist(), None],
            "chance": frame.chance[film.word],
            "raises": raises,
        }
        found[step] = frame.maps[film.word], as_json(figures, DIGITS)
    return found
