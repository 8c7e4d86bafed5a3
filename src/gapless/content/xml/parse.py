"""How does a text become a pattern? A recursive descent over the tokens, without going back.

    expression   conjunction ('or' conjunction)*
    conjunction  comparison ('and' comparison)*
    comparison   operand (('=' | '!=' | '<' | '<=' | '>' | '>=') operand)?
    operand      path | string | '-'* number | '(' expression ')' | 'not' '(' expression ')'
                 | 'true()' | 'false()' | ('contains' | 'starts-with') '(' operand ',' string ')'
    path         ('/' | '//')? step (('/' | '//') step)*
    step         '.' | (name | '*' | '@' name | '@*' | 'text()') ('[' expression ']')*

Paths begin with `/` or `//` outside of predicates and without inside. A name may be `Q{uri}local`, as in
XPath 3, for an element or attribute in a namespace; a plain name is in none, as always in XPath.

All other XPath is refused by name, with the position and the alternative. Time is linear in the text, except
for the search for redundant parts, which has its own bound; nesting is checked before recursing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from gapless.content.xml.normal import Normal, alternatives
from gapless.content.xml.pattern import FALSE, TEXT, TRUE, And, Axis, Has, Need, Not, Or, Pattern, Some
from gapless.errors import ContentError

__all__ = ["ALTERNATIVES_MAX", "NESTING_MAX", "PIECES_MAX", "TEXT_CHARS_MAX", "parse_pattern"]

#: The longest text that is read.
TEXT_CHARS_MAX = 8_192
#: The most steps, literals and functions in one pattern.
PIECES_MAX = 256
#: How deep steps, predicates and parentheses may nest; documents are at most 256 deep themselves.
NESTING_MAX = 48
#: Maximum number of conjunctions to which the `or`s of one element multiply.
ALTERNATIVES_MAX = 64

#: Up to this length a pattern is certainly within the limits when printed: a `//@name` prints as two paths.
_SMALL_SIZE = 48
_SMALL_DEPTH = 16
_SMALL_CHARS = 1_000

_NAME_START = (
    "A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f"
    "\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_NAME = f"[{_NAME_START}][{_NAME_START}\\-.0-9\u00b7\u0300-\u036f\u203f\u2040]*"
_TOKEN = re.compile(
    rf"""(?P<name>Q\{{[^{{}}]*\}}{_NAME}|{_NAME})
    |(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)
    |(?P<string>"[^"]*"|'[^']*')
    |(?P<symbol>//|::|\.\.|!=|<=|>=|[/.\[\]()@,=<>|+\-*:$])""",
    re.VERBOSE,
)
_SPACE = re.compile(r"[ \t\r\n]*")
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_COMPARISONS = frozenset({"=", "!=", "<", "<=", ">", ">="})
_ARITHMETIC = frozenset({"+", "-", "*", "div", "mod"})
_MATCHING = frozenset({"contains", "starts-with"})
_POSITION = (
    "positions are not supported: whether a document matches must not depend on the order of its parts; "
    "ask for a value instead, such as [@rank = 1]"
)
_BELOW_VALUE = "nothing lies below an attribute or a text: compare it, as in @name[. = 'x']"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Step:
    axis: Axis
    #: `.`, `@name`, `@*`, `text()`, or empty for an element.
    subject: str
    #: The name of an element; None for `*`.
    label: str | None
    #: What the predicates ask for.
    test: Need


@dataclass(frozen=True, slots=True)
class _Path:
    at: int
    absolute: bool
    steps: tuple[_Step, ...]


@dataclass(frozen=True, slots=True)
class _Literal:
    at: int
    value: str | float


@dataclass(frozen=True, slots=True)
class _Truth:
    """Something that is already true or false: a comparison, an `and`, a function."""

    at: int
    need: Need


_Operand = _Path | _Literal | _Truth


def parse_pattern(text: str) -> Pattern:
    """Read an XPath pattern.

    Raises `ContentError`: E170 for invalid XPath, E171 for unsupported XPath, E172 for a pattern that is too
    large.

    >>> print(parse_pattern("//block[ 'x' = @class ][.//p]/p"))
    //block[@class = 'x'][p]
    >>> parse_pattern("/a/b[c]") == parse_pattern("/a[b/c]")
    True
    """
    if len(text) > TEXT_CHARS_MAX:
        raise ContentError("E172", f"a pattern has at most {TEXT_CHARS_MAX} characters; this has {len(text)}")
    need = _Parser(text).whole()
    _check_alternatives(need, text)
    pattern = Pattern(need)
    if need.size > _SMALL_SIZE or need.depth > _SMALL_DEPTH or len(pattern.text) > _SMALL_CHARS:
        _check_printed(pattern, text)
    return pattern


def _check_printed(pattern: Pattern, text: str) -> None:
    """Refuse a pattern whose normal form could not be read again: it may be longer than the original."""
    fits = len(pattern.text) <= TEXT_CHARS_MAX
    if fits:
        try:
            fits = Pattern(_Parser(pattern.text).whole()) == pattern
        except ContentError:
            fits = False
    if not fits:
        raise ContentError("E172", "the pattern is too large once it is fully expanded", text=text, at=0)


def _check_alternatives(need: Need, text: str) -> None:
    if alternatives(need) > ALTERNATIVES_MAX:
        message = f"the 'or's of one element multiply to more than {ALTERNATIVES_MAX} alternatives"
        raise ContentError("E172", f"{message}: subscribe to the parts one by one", text=text, at=0)
    match need:
        case And(terms=terms) | Or(terms=terms):
            for each in terms:
                _check_alternatives(each, text)
        case Not(term=term):
            _check_alternatives(term, text)
        case Has(test=test) | Some(test=test):
            _check_alternatives(test, text)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._normal = Normal()
        self._pieces = 0
        self._nesting = 0
        #: Whether we are in the predicate of an attribute or a text, where there is only `.`.
        self._in_value = False
        bad = _NOT_XML.search(text)
        if bad is not None:
            self._fail("E170", f"XML has no character U+{ord(bad[0]):04X}", bad.start())
        self._token = self._read(0)

    def whole(self) -> Need:
        need = self._expression(inside=False)
        if self._token.kind != "end":
            self._unexpected()
        return need

    # ------------------------------------------------------------------------------- expressions

    def _expression(self, *, inside: bool) -> Need:
        """An expression as a truth; `inside` a predicate or not."""
        return self._truth(self._disjunction(inside=inside))

    def _disjunction(self, *, inside: bool) -> _Operand:
        first = self._conjunction(inside=inside)
        if not self._at_word("or"):
            return first
        terms = [self._truth(first)]
        while self._at_word("or"):
            self._next()
            terms.append(self._truth(self._conjunction(inside=inside)))
        return _Truth(first.at, self._normal.any_of(terms))

    def _conjunction(self, *, inside: bool) -> _Operand:
        first = self._comparison(inside=inside)
        if not self._at_word("and"):
            return first
        terms = [self._truth(first)]
        while self._at_word("and"):
            self._next()
            terms.append(self._truth(self._comparison(inside=inside)))
        return _Truth(first.at, self._normal.all_of(terms))

    def _comparison(self, *, inside: bool) -> _Operand:
        left = self._operand(inside=inside)
        token = self._token
        if token.text in _ARITHMETIC and token.kind in {"symbol", "name"}:
            self._fail(
                "E171", f"arithmetic ({token.text}) is not supported: compare with a literal", token.at
            )
        if token.kind != "symbol" or token.text not in _COMPARISONS:
            return left
        self._next()
        right = self._operand(inside=inside)
        if self._token.kind == "symbol" and self._token.text in _COMPARISONS:
            self._fail("E171", "one comparison at a time: join two with 'and'", self._token.at)
        return _Truth(left.at, self._compared(left, token, right))

    def _compared(self, left: _Operand, token: _Token, right: _Operand) -> Need:
        for path, literal, mirrored in ((left, right, False), (right, left, True)):
            if isinstance(path, _Path) and isinstance(literal, _Literal):
                test = self._normal.compare(token.text, literal.value, mirrored=mirrored)
                return self._need(path, test)
        return self._fail(
            "E171", "a comparison needs a path on one side and a literal on the other", token.at
        )

    def _truth(self, operand: _Operand) -> Need:
        match operand:
            case _Truth(need=need):
                return need
            case _Path():
                return self._need(operand, TRUE)
            case _Literal(value=float()):
                return self._fail("E171", _POSITION, operand.at)
            case _Literal():
                return self._fail(
                    "E171", "a string alone is not a condition: compare it with something", operand.at
                )

    # ---------------------------------------------------------------------------------- operands

    def _operand(self, *, inside: bool) -> _Operand:
        token = self._token
        match token.kind:
            case "string":
                self._piece(token.at)
                self._next()
                return _Literal(token.at, token.text[1:-1])
            case "number":
                return self._number(1.0)
            case "name" if self._calls(token):
                return self._function(inside=inside)
            case "symbol" if token.text == "(":
                return self._parenthesis(inside=inside)
            case "symbol" if token.text == "-":
                sign = 1.0
                while self._token.text == "-":
                    sign = -sign
                    self._next()
                return self._number(sign)
            case "symbol" if token.text == "$":
                self._fail("E171", "variables are not supported: write the value itself", token.at)
        return self._path(inside=inside)

    def _number(self, sign: float) -> _Literal:
        token = self._token
        if token.kind != "number":
            self._fail("E171", "a minus is allowed only before a number", token.at)
        self._piece(token.at)
        self._next()
        return _Literal(token.at, sign * float(token.text))

    def _parenthesis(self, *, inside: bool) -> _Operand:
        at = self._token.at
        self._next()
        self._enter(at)
        inner = self._disjunction(inside=inside)
        self._nesting -= 1
        self._expect(")")
        if self._token.text in {"[", "/", "//"} and self._token.kind == "symbol":
            self._fail("E171", "a step or predicate after parentheses is not supported", self._token.at)
        return inner

    def _calls(self, token: _Token) -> bool:
        """Whether a name is that of a function; `text(` begins a step."""
        return token.text != "text" and self._text.startswith("(", self._skip(token.at + len(token.text)))

    def _function(self, *, inside: bool) -> _Operand:
        token = self._token
        name = token.text
        self._piece(token.at)
        self._next()
        self._expect("(")
        self._enter(token.at)
        if name == "not":
            need = self._normal.negate(self._expression(inside=inside))
        elif name in {"true", "false"}:
            need = TRUE if name == "true" else FALSE
        elif name in _MATCHING:
            need = self._matching(name, inside=inside)
        elif name in {"position", "last"}:
            self._fail("E171", _POSITION, token.at)
        elif name in {"node", "comment", "processing-instruction"}:
            self._fail("E171", f"{name}() is not supported: ask for elements, attributes or text()", token.at)
        else:
            known = "not(), true(), false(), contains(), starts-with() and text()"
            self._fail("E171", f"the function {name}() is not supported: there are {known}", token.at)
        self._nesting -= 1
        self._expect(")")
        return _Truth(token.at, need)

    def _matching(self, name: str, *, inside: bool) -> Need:
        at = self._token.at
        path = self._operand(inside=inside)
        self._expect(",")
        token = self._token
        literal = self._operand(inside=inside)
        if (
            not isinstance(path, _Path)
            or not isinstance(literal, _Literal)
            or not isinstance(literal.value, str)
        ):
            self._fail("E171", f"{name}() takes a path and then a string in quotes", at)
        *before, last = path.steps
        single = last.subject == "." or (last.subject.startswith("@") and last.subject != "@*")
        if path.absolute or not single or any(each.subject != "." for each in before) or last.test != TRUE:
            reason = "may be several nodes, of which XPath looks only at the first"
            self._fail("E171", f"what {name}() looks at {reason}: write path[{name}(., 'x')]", at)
        if not literal.value:
            # Without the attribute, its text is empty and still contains the empty text.
            return TRUE
        test = self._normal.compare(name, literal.value)
        assert token.kind == "string", token
        return self._need(path, test)

    # ------------------------------------------------------------------------------------- paths

    def _path(self, *, inside: bool) -> _Path:
        start = self._token
        absolute = start.kind == "symbol" and start.text in {"/", "//"}
        if absolute and inside:
            way = "name what lies below this element, such as [b] or [.//b]"
            self._fail("E171", f"a path from the root is not supported inside a predicate: {way}", start.at)
        if not absolute and not inside:
            if start.kind == "end" or not self._starts_step(start):
                self._unexpected()
            self._fail("E171", "a pattern is absolute: begin with / or //", start.at)
        nesting = self._nesting
        axis = Axis.CHILD
        if absolute:
            axis = Axis(start.text)
            self._next()
            if start.text == "/" and not self._starts_step(self._token):
                self._fail("E171", "the root alone is in every document: write /* for any", start.at)
        steps = [self._step(axis)]
        while self._token.kind == "symbol" and self._token.text in {"/", "//"}:
            token = self._token
            if steps[-1].subject not in {"", "."}:
                self._fail("E171", _BELOW_VALUE, token.at)
            self._enter(token.at)
            self._next()
            steps.append(self._step(Axis(token.text)))
        self._nesting = nesting
        if self._token.text == "|":
            self._fail("E171", "a union (|) is not supported: write 'or'", self._token.at)
        return _Path(start.at, absolute, tuple(steps))

    def _starts_step(self, token: _Token) -> bool:
        return token.kind == "name" or (token.kind == "symbol" and token.text in {".", "..", "*", "@"})

    def _step(self, axis: Axis) -> _Step:
        token = self._token
        self._piece(token.at)
        if not self._starts_step(token):
            self._unexpected()
        if token.text == "..":
            self._fail("E171", "the parent (..) is not supported: start the path further up", token.at)
        if self._in_value and token.text != ".":
            self._fail("E171", _BELOW_VALUE, token.at)
        if token.kind == "symbol" and token.text == ".":
            return self._self_step(axis, token)
        subject, label = self._node_test(token)
        outer, self._in_value = self._in_value, bool(subject)
        tests = []
        while self._token.kind == "symbol" and self._token.text == "[":
            self._enter(self._token.at)
            self._next()
            tests.append(self._expression(inside=True))
            self._nesting -= 1
            self._expect("]")
        self._in_value = outer
        return _Step(axis, subject, label, self._normal.all_of(tests))

    def _self_step(self, axis: Axis, token: _Token) -> _Step:
        self._next()
        if axis is Axis.DESCENDANT:
            self._fail("E171", "a . after // is any node at all: name an element, @name or text()", token.at)
        if self._token.text == "[":
            self._fail("E170", "a . takes no predicate: write a name or * before it", self._token.at)
        return _Step(axis, ".", None, TRUE)

    def _node_test(self, token: _Token) -> tuple[str, str | None]:
        """The subject and the name of a step that is not `.`."""
        self._next()
        if token.kind == "symbol" and token.text == "@":
            name = self._token
            if name.kind != "name" and name.text != "*":
                self._fail("E170", "a name or * belongs after @", name.at)
            self._next()
            self._refuse_prefix(name)
            return f"@{_spelled(name.text)}", None
        if token.kind == "symbol":
            return "", None
        if self._token.text == "(":
            if token.text != "text":
                self._fail("E171", f"{token.text}() is not supported as a step", token.at)
            self._next()
            self._expect(")")
            return TEXT, None
        self._refuse_prefix(token)
        return "", _spelled(token.text)

    def _refuse_prefix(self, name: _Token) -> None:
        if self._token.text == "::":
            way = "write / for child, // for descendant and @ for attribute"
            self._fail("E171", f"the axis {name.text}:: is not supported: {way}", name.at)
        if self._token.text == ":":
            way = "write Q{uri}local with the namespace itself"
            self._fail("E171", f"the prefix {name.text}: has no meaning here: {way}", name.at)

    def _need(self, path: _Path, test: Need) -> Need:
        """What a path asks of the element at its start, when `test` is asked of its end."""
        normal = self._normal
        for step in reversed(path.steps):
            here = normal.all_of((step.test, test))
            if step.subject == ".":
                test = here
            elif step.subject == "":
                test = normal.has(step.axis, step.label, here)
            elif step.axis is Axis.CHILD:
                test = normal.some(step.subject, here)
            else:
                # `//@p` is an attribute of this element or of any below; the document node has none.
                some = normal.some(step.subject, here)
                below = normal.has(Axis.DESCENDANT, None, some)
                first = path.absolute and step is path.steps[0]
                test = below if first else normal.any_of((some, below))
        if path.absolute and path.steps[0].subject and path.steps[0].axis is Axis.CHILD:
            self._fail("E171", "the root has only an element below: begin with a name or *", path.at)
        return test

    # ------------------------------------------------------------------------------------ tokens

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def _read(self, at: int) -> _Token:
        at = self._skip(at)
        if at == len(self._text):
            return _Token("end", "", at)
        found = _TOKEN.match(self._text, at)
        if found is None:
            character = self._text[at]
            what = "this string has no end" if character in "\"'" else f"unexpected {character!r}"
            self._fail("E170", what, at)
        return _Token(found.lastgroup or "", found[0], at)

    def _next(self) -> None:
        self._token = self._read(self._token.at + len(self._token.text))

    def _at_word(self, word: str) -> bool:
        return self._token.kind == "name" and self._token.text == word

    def _expect(self, symbol: str) -> None:
        if self._token.kind != "symbol" or self._token.text != symbol:
            self._unexpected(f", expected {symbol!r}")
        self._next()

    def _enter(self, at: int) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            self._fail("E172", f"steps and predicates nest at most {NESTING_MAX} deep", at)

    def _piece(self, at: int) -> None:
        self._pieces += 1
        if self._pieces > PIECES_MAX:
            self._fail("E172", f"a pattern has at most {PIECES_MAX} steps, literals and functions", at)

    def _unexpected(self, more: str = "") -> NoReturn:
        token = self._token
        shown = "the end" if token.kind == "end" else repr(token.text)
        self._fail("E170", f"unexpected {shown}{more}", token.at)

    def _fail(self, code: str, message: str, at: int) -> NoReturn:
        raise ContentError(code, message, text=self._text, at=at)


def _spelled(name: str) -> str:
    """A name as lxml spells it: `Q{uri}local` is `{uri}local`, and `Q{}local` is `local`."""
    if name.startswith("Q{"):
        return name[3:] if name.startswith("Q{}") else name[1:]
    return name
