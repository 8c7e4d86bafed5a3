"""Random patterns and documents over few names and values, so that they often meet."""

import random

_NAMES = ["a", "b", "c", "*", "a", "b"]
_LITERALS = ["'x'", "'5'", "5", "5.5", "-1", "''", "'xy'", "0", "10", "'a5'", "-0", ".5", "' 5 '"]
_OPERATORS = ["=", "!=", "<", "<=", ">", ">="]
_LEAVES = ["@p", "@q", "@*", "text()", ".", "b", ".//c", ".//@p", ".//text()", "*"]
_VALUE_TESTS = [
    "text()[. > 3 and . != 5]",
    "@*[. = 5 or contains(., 'x')]",
    "@p[not(. > 3)]",
    "text()[contains(., 'x')]",
    "@*[not(. = 5)]",
    "text()[not(. > 3)]",
    "@*[. != 5 and (contains(., 'x') or . > 3)]",
    "true()",
]
_ATTRIBUTE_VALUES = ["x", "5", "5.0", "y5", " 5", "10", "", "-1", "1e1", "nan"]
_TEXTS = ["", "", "x", "5", "xy", "<!--x-->", "<?x y?>", "<![CDATA[x]]>", "&lt;", "10", "&#53;", " "]


def random_pattern(rng: random.Random) -> str:
    """An absolute XPath pattern of the supported kind."""
    path = random_path(rng, 2).lstrip("./")
    text = rng.choice(["/", "//", "//"]) + path
    if rng.random() < 0.05:
        text = f"{text} or /b[{_predicate(rng, 1)}]"
    return f"not({text})" if rng.random() < 0.05 else text


def random_path(rng: random.Random, depth: int) -> str:
    """A relative path."""
    text = rng.choice(["", ".//", "./", ""])
    for step in range(rng.randint(1, 3)):
        if step:
            text += rng.choice(["/", "/", "//"])
        text += rng.choice(_NAMES)
        while rng.random() < 0.25 and depth > 0:
            text += f"[{_predicate(rng, depth - 1)}]"
    return text + rng.choice(["/@p", "//@p", "/text()", "/."]) if rng.random() < 0.1 else text


def _predicate(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth <= 0 or kind < 0.25:
        return rng.choice(_LEAVES)
    if kind < 0.5:
        subject = rng.choice(["@p", "@q", "@*", "text()", ".", random_path(rng, depth - 1), ".//@p"])
        sides = [subject, rng.choice(_LITERALS)]
        if rng.random() < 0.3:
            sides.reverse()
        return f"{sides[0]} {rng.choice(_OPERATORS)} {sides[1]}"
    if kind < 0.6:
        return random_path(rng, depth - 1)
    if kind < 0.8:
        word = rng.choice(["and", "or"])
        return f"({_predicate(rng, depth - 1)} {word} {_predicate(rng, depth - 1)})"
    if kind < 0.9:
        return f"not({_predicate(rng, depth - 1)})"
    if kind < 0.95:
        name = rng.choice(["contains", "starts-with"])
        literal = rng.choice(["'x'", "'5'", "''", "'x5'"])
        return f"{name}({rng.choice(['.', '@p', '@q'])}, {literal})"
    return rng.choice(_VALUE_TESTS)


def random_document(rng: random.Random, depth: int = 3) -> str:
    """A well-formed document, with comments and the like in it."""
    name = rng.choice("abcab")
    attributes = "".join(f' {each}="{rng.choice(_ATTRIBUTE_VALUES)}"' for each in "pq" if rng.random() < 0.35)
    body = rng.choice(_TEXTS) + rng.choice(_TEXTS)
    if depth:
        for _ in range(rng.randint(0, 3)):
            body += random_document(rng, depth - 1) + rng.choice(_TEXTS) + rng.choice(_TEXTS)
    return f"<{name}{attributes}>{body}</{name}>"
