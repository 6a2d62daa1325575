"""Secrets in command lines, URLs and settings, masked before they are stored or shown.

Reports are mailed around and attached to issues. What a report says of its origin (the command,
the URL of a store, a trace's metadata) passes through here first. A value is masked where its name
says that it is a secret (`--password`, `HF_TOKEN`, `?sig=`) or where its shape does (keys and
tokens of well-known services, JSON web tokens, private keys). A name that is often harmless, such
as `key`, masks only values that look random. Names stay readable, so that one still sees what was
given.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

MASK = "***"
"""What stands where a secret was."""

_SECRET_WORDS = frozenset(
    "secret secrets credential credentials passphrase passcode authorization bearer apikey "
    "secretkey accesskey privatekey authtoken accesstoken apitoken sshpass".split()
)
# "key" is a secret beside one of these; elsewhere it is a column or an argument to sort by.
_KEY_KINDS = frozenset(
    "api access secret private signing encryption deploy ssh account storage master license "
    "client auth service subscription shared app application session webhook".split()
)
_PASS_OWNERS = frozenset(
    "user db database smtp ftp mail email redis mysql pg postgres proxy http https admin root "
    "sudo login account registry docker".split()
)
# A language model's tokens are no secrets: eos_token, max_tokens, token_type, tokens_per_batch.
_TOKENS_OF_TEXT = frozenset(
    "eos bos pad unk mask cls sep special start end stop begin image video audio vision max min "
    "num number per next new prompt first last total context decoder input output word sub mean "
    "type types ids len length lengths size sizes count limit level classification dropout rate "
    "embedding embeddings dim dims budget merging pruning shift mixing wise idx index drop "
    "id".split()
)
# These say where a secret is, or how long, and not what it is.
_ABOUT = frozenset("file path dir folder env name length size type prompt policy".split())
_OFTEN_HARMLESS = frozenset(
    "key keys token tokens auth sig signature session cookie cookies pat pwd pass sas dsn".split()
)
_SECRET_PARAMETERS = frozenset(
    "key sig signature auth pwd pass pw x-amz-signature x-amz-credential x-goog-signature".split()
)
"""Names that mean a secret in the query of a URL, although elsewhere they seldom do."""
_QUOTES = "\"'"
_NO_SECRET = frozenset({"", "none", "null", "true", "false", MASK})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_SHAPES = re.compile(
    r"""
    (?<![A-Za-z0-9_])
    (?: (?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|AIPA|ANPA|ANVA)[A-Z0-9]{16}(?![A-Za-z0-9])  # AWS
    | gh[opsur]_[A-Za-z0-9]{20,}                                    # GitHub
    | github_pat_[A-Za-z0-9_]{20,}
    | gl(?:pat|dt|rt|ptt|cbt|soat)-[A-Za-z0-9_-]{16,}               # GitLab
    | hf_[A-Za-z0-9]{20,}                                           # Hugging Face
    | api_org_[A-Za-z0-9]{20,}
    | [sr]k[-_](?:live_|test_)?[A-Za-z0-9_-]{20,}                   # OpenAI, Anthropic, Stripe
    | xox[abeoprs]-[A-Za-z0-9-]{10,}                                # Slack
    | AIza[A-Za-z0-9_-]{35}                                         # Google
    | ya29\.[A-Za-z0-9_-]{20,}
    | npm_[A-Za-z0-9]{30,}
    | pypi-[A-Za-z0-9_-]{30,}
    | nvapi-[A-Za-z0-9_-]{30,}
    | dop_v1_[a-f0-9]{40,}
    | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}
    | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*  # a JSON web token
    )
    """,
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL
)
_SCHEME_WITH_VALUE = re.compile(
    r"(?<![\w.-])((?i:bearer|basic|negotiate)\s+)([A-Za-z0-9+/=_.~-]{8,})"
)
# The password ends with the last @ of the authority; one with an unescaped / or ? with the first
# @ after it, unless what follows the colon is a port.
_URL_PASSWORD = re.compile(
    r"""(?<![\w+.-])([A-Za-z][A-Za-z0-9+.-]*://[^\s/?\#:@'"]*):"""
    r"""(?:[^\s/?\#'"]{0,2000}@|(?![0-9]{1,5}[/?\#])[^\s'"@]{0,2000}@)"""
)
_URL_USER = re.compile(r"""(?<![\w+.-])([A-Za-z][A-Za-z0-9+.-]*://)([^\s/?\#:@'"]{16,})@""")
_PARAMETER = re.compile(r"([?&;])([\w.%~-]+)=([^&;#\s'\"]*)")
_ASSIGNMENT = re.compile(r"""(?<![\w.-])-*([A-Za-z_][\w.-]*)["']?\s*[=:]\s*(?=\S)""")
_OPTION = re.compile(r"(?<![\w.-])--?([A-Za-z][\w.-]*)\s+(?=[^\s-])")
_BARE_VALUE = re.compile(r"""[^\s,;&"'{}\[\]()]+""")
_LONGEST_LOOKED_AT = 256
"""Characters of a value by which it is judged; a secret is masked to its end."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or setting of this name holds a secret.

    `HF_TOKEN`, `--db-password` and `apiKey` do; `max_tokens`, `eos_token`, `token_file` and `PWD`
    do not.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    if any(word in _SECRET_WORDS or "password" in word or "passwd" in word for word in words):
        return True
    if "token" in words or ("tokens" in words and _KEY_KINDS.intersection(words)):
        return not _TOKENS_OF_TEXT.intersection(words)
    for before, word in pairwise(words):
        if word in ("key", "keys") and before in _KEY_KINDS:
            return True
        if word == "pwd" or (word == "pass" and before in _PASS_OWNERS):
            return True
    return words == ["pass"]


def redact(text: str) -> str:
    """Return `text` with what looks like a secret in it replaced by `***`.

    Works on URLs, command lines, `NAME=value` and JSON, alone or inside other text. What is masked
    stays masked: `redact(redact(text)) == redact(text)`.
    """
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _SHAPES.sub(MASK, text)
    text = _SCHEME_WITH_VALUE.sub(rf"\1{MASK}", text)
    if "@" in text:
        text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
        text = _URL_USER.sub(_without_random_user, text)
    text = _PARAMETER.sub(_without_parameter, text)
    return _without_values(_OPTION, _without_values(_ASSIGNMENT, text))


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command's arguments with the secrets in them masked.

    Besides what `redact` finds in each: the value of `--token VALUE` and all of `--token=VALUE`,
    whatever characters it has.
    """
    return tuple(_redacted_arguments(arguments))


def _redacted_arguments(arguments: Sequence[str]) -> Iterator[str]:
    option = None
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option is not None and not argument.startswith("-"):
            yield MASK if _is_secret(option, argument) else redact(argument)
            option = None
            continue
        if equals and re.fullmatch(r"[-+~]*[\w.-]+", name) and _is_secret(name, value):
            yield f"{name}={MASK}"
        else:
            yield redact(argument)
        option = argument if argument.startswith("-") and not equals else None


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    """Mask the values whose names say so, inside other values too: `env="TOKEN=abc"`."""
    parts = []
    position = 0
    while (match := pattern.search(text, position)) is not None:
        begin = match.end() + (text[match.end()] in _QUOTES)
        parts.append(text[position:begin])
        position = begin
        if _is_secret(match[1], text[begin : _end_of_value(text, begin, _LONGEST_LOOKED_AT)]):
            parts.append(MASK)
            position = _end_of_value(text, begin, len(text))
    return "".join([*parts, text[position:]])


def _end_of_value(text: str, begin: int, most: int) -> int:
    """Return where the value that begins here ends: at its closing quote, or with its word."""
    quote = text[begin - 1]
    if quote in _QUOTES:
        end = begin
        while (end := text.find(quote, end, begin + most)) > 0 and text[end - 1] == "\\":
            end += 1
        if end >= 0:
            return end
    bare = _BARE_VALUE.match(text, begin, begin + most)
    return begin if bare is None else bare.end()


def _without_parameter(match: re.Match[str]) -> str:
    before, name, value = match.groups()
    if not value or not (name.lower() in _SECRET_PARAMETERS or _is_secret(name, value)):
        return match[0]
    return f"{before}{name}={MASK}"


def _without_random_user(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}@" if _is_random(match[2]) else match[0]


def _is_secret(name: str, value: str) -> bool:
    """Return whether `value`, given under `name`, is a secret."""
    if value.lower() in _NO_SECRET:
        return False
    if is_secret_name(name):
        return True
    words = {word.lower() for word in _WORD.findall(name)}
    return bool(words & _OFTEN_HARMLESS) and _is_random(value)


def _is_random(value: str) -> bool:
    """Return whether `value` is long, without structure, and mixes letters and digits."""
    if len(value) < 16 or not re.fullmatch(r"[A-Za-z0-9+_.~=-][A-Za-z0-9+/_.~=-]*", value):
        return False
    if not (re.search("[0-9]", value) and re.search("[A-Za-z]", value)):
        return False
    counts = Counter(value).values()
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in counts)
    return bits >= 3.0
