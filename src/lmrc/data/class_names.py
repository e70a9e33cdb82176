"""Names of classes, from folders, tables and users."""

import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any


def class_name(text: str) -> str:
    """Return the name of a class in Unicode's normal form NFC.

    An é may be one letter, or an e and an accent, as on a Mac.

    >>> class_name("cafe\u0301") == "caf\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text)


def similar_names(new: Iterable[Any], known: Collection[Any] = ()) -> list[tuple[Any, Any]]:
    """Return new classes with another one of nearly the same name.

    Names are nearly the same if they differ only in case, in white space, or in hyphens and
    underscores beside letters: 1-11 and 11-1 are different.

    >>> similar_names(["Blue bell", "sun_flower", "sun-flower", "-1"], known=["bluebell", "1"])
    [('Blue bell', 'bluebell'), ('sun-flower', 'sun_flower')]
    """

    def key(label: Any) -> str:
        name = " ".join(class_name(str(label)).casefold().split())
        letter = r"[^\W\d_]"
        return re.sub(rf"(?<={letter})[\s_-]+(?=\w)|(?<=\w)[\s_-]+(?={letter})", "", name)

    first = {key(label): label for label in known}
    pairs = [(label, first.setdefault(key(label), label)) for label in new if label not in known]
    return [(label, other) for label, other in pairs if label != other]
