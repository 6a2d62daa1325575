"""Masking of secrets in command lines, URLs and settings before they are stored or shown.

Reports are shared and attached to issues, so their provenance (command, URL of a store, metadata of
a trace) is masked first. A value is masked if its name denotes a secret (`--password`, `HF_TOKEN`,
`?sig=`) or if its shape does (keys and tokens of well-known services, JSON web tokens, private
keys). If the name is often harmless, such as `key`, only values that look random are masked. Names
stay readable.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

MASK = "***"  # Replacement of a secret.

_SECRET_WORDS = frozenset(
    "secret secrets credential credentials passphrase passcode authorization bearer apikey "
    "secretkey accesskey privatekey authtoken accesstoken apitoken sshpass".split()
)
# `key` is a secret after one of these words; elsewhere it is, for example, a sort key.
_KEY_KINDS = frozenset(
    "api access secret private signing encryption deploy ssh account storage master license "
    "client auth service subscription shared app application session webhook".split()
)
_PASS_OWNERS = frozenset(
    "user db database smtp ftp mail email redis mysql pg postgres proxy http https admin root "
    "sudo login account registry docker".split()
)
# Tokens of language models are not secrets: eos_token, max_tokens, token_type, tokens_per_batch.
_TOKENS_OF_TEXT = frozenset(
    "eos bos pad unk mask cls sep special start end stop begin image video audio vision max min "
    "num number per next new prompt first last total context decoder input output word sub mean "
    "type types ids len length lengths size sizes count limit level classification dropout rate "
    "embedding embeddings dim dims budget merging pruning shift mixing wise idx index drop "
    "id null weight weights dispatcher speculative details".split()
)
# Last words of names that describe a secret without containing it.
_DESCRIBING = frozenset("file path dir folder env name length size type prompt policy".split())
# First words of names of counts.
_COUNTING = frozenset("num number count n".split())
_OFTEN_HARMLESS = frozenset(
    "key keys token tokens auth sig signature session cookie cookies pat pwd pass sas dsn".split()
)
# Names that denote a secret in the query of a URL, but rarely elsewhere.
_SECRET_PARAMETERS = frozenset(
    "key sig signature auth pwd pass pw code x-amz-signature x-amz-credential "
    "x-goog-signature".split()
)
# Programs and subcommands with a short option that is followed by a password.
_PASSWORD_OPTIONS = {
    **dict.fromkeys("sshpass mysql mysqldump mysqladmin mariadb mongosh mongodump".split(), "-p"),
    **dict.fromkeys(("docker login", "podman login", "registry login", "az login"), "-p"),
    "redis-cli": "-a",
    "ldapsearch": "-w",
    "curl": "-u",
}
# Options of other programs that take USER:PASSWORD.
_ACCOUNT_OPTIONS = ("-u", "--user", "--proxy-user")
_QUOTES = "\"'"
_NO_SECRET = frozenset({"", "none", "null", "true", "false", "yes", "no", "on", "off", MASK})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

# Prefixes of tokens by the characters that follow: (pattern, minimum number, prefixes). The shapes
# are those of the rules of gitleaks.
_TOKENS: tuple[tuple[str, int, str], ...] = (
    (
        "[A-Za-z0-9]",
        20,
        "ghp_ gho_ ghs_ ghu_ ghr_ hf_ api_org_ gsk_ ak- as- pul- ico- key- LTAI fw_ pat. sat.",
    ),
    ("[A-Za-z0-9]", 30, "r8_ npm_ pplx- lin_api_ esecret_ glc_ EZAK EAAM EAAC AKCp pnu_ clojars_"),
    ("[A-Za-z0-9]", 40, "CLOJARS_ ntn_ HRKU-AA xai- pcsk_ fm2_ tk-us- tk-eu- dp.pt. dp.st. aio_"),
    ("[A-Za-z0-9]", 70, "pat ATATT3 ATCTT3"),
    ("[a-f0-9]", 30, "dapi SK key- live_ lsv2_pt_ lsv2_sk_ shpat_ shpca_ shppa_ shpss_"),
    ("[a-f0-9]", 40, "dop_v1_ doo_v1_ dor_v1_ shippo_live_ shippo_test_ rubygems_ sgp_ xkeysib-"),
    ("[A-Z0-9]", 16, "AKIA ASIA ABIA ACCA AGPA AIDA AROA AIPA ANPA ANVA"),
    ("[A-Z0-9]", 20, "AGE-SECRET-KEY-1 dt0c01. dt0s01. API- NRAK- NRJS- NRII-"),
    (
        *("[A-Za-z0-9_=.-]", 16),
        "glpat- gldt- glrt- glptt- glcbt- glsoat- glft- glimt- sm_pat_ sq0atp- sq0csp- dnkey-",
    ),
    (
        *("[A-Za-z0-9_=.-]", 20),
        "github_pat_ sk- sk_ rk- rk_ ya29. hvs. hvb. hvr. glsa_ GOCSPX- dckr_pat_ sha256~ v1.0- "
        "p8e- duffel_live_ duffel_test_ FLWSECK_TEST- FLWSECK- pscale_tkn_ pscale_pw_ PMAK- "
        "fio-u- rdme_ tfp_ sntrys_ sntryu_ wandb_v1_ tgp_v1_ nvapi- pypi- pk.eyJ ops_eyJ xoxe.",
    ),
    ("[A-Za-z0-9-]", 10, "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- tskey-"),
    ("[A-Za-z0-9_-]", 35, "AIza"),
)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    + "|".join(
        f"(?:{'|'.join(map(re.escape, prefixes.split()))}){kind}{{{minimum},}}"
        for kind, minimum, prefixes in _TOKENS
    )
    + r"""
    | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}                    # SendGrid
    | [A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}                # Terraform
    | [0-9]{8,10}:AA[A-Za-z0-9_-]{32,}                             # Telegram
    | [A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{30,}                # Microsoft Entra
    | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*  # JSON web token
    | eyJ[A-Za-z0-9+/_-]{40,}={0,2}                                 # JSON in base64 (Neptune)
    )
    """,
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL
)
# End of a key in a text whose start is missing, such as the last lines of an output.
_PRIVATE_KEY_END = re.compile("-----END [A-Z0-9 ]*PRIVATE KEY-----")
_KEY_CHARACTERS = f"{string.ascii_letters}{string.digits}+/=\\\r\n"
_SCHEME_WITH_VALUE = re.compile(
    r"(?<![\w.-])((?i:bearer|basic|negotiate)\s+)([A-Za-z0-9+/=_.~-]{8,})"
)
# `Authorization: SCHEME VALUE`, also of a proxy.
_AUTHORIZATION = re.compile(
    r"""((?i:authorization)["']?\s*[:=]\s*["']?)(?:[A-Za-z]{1,20}[ \t]+)?[^\s"',;]+"""
)
# A secret whose context identifies it: (prefix)(secret).
_IN_CONTEXT = re.compile(
    r"""
    ((?<!\S)login\s+)([A-Za-z0-9]{40,})(?!\S)                               # wandb login KEY
    | (machine\s+\S+\s+login\s+\S+\s+password\s+)(\S+)                      # netrc
    | (hooks\.slack\.com/(?:services|workflows)/)([\w/-]+)
    | (discord(?:app)?\.com/api/webhooks/\d+/)([\w-]+)
    | (api\.telegram\.org/bot)([\w:-]+)
    | ((?<!\S)(?:-u|--user|--proxy-user)(?:\s+|=)["']?[^\s:"'/]+:)((?!/|[0-9]{1,5}(?:\s|$))[^\s"']+)
    """,
    re.VERBOSE,
)
_PROGRAM_PASSWORD = re.compile(
    "|".join(
        rf"((?<!\S)(?:\S*/)?{program}(?:\s+[^\s;|]+){{0,20}}?\s+{option}\s?)([^\s=-]\S*)"
        for program, option in _PASSWORD_OPTIONS.items()
    )
)
# Secret key of AWS: 40 characters of base64 without a prefix.
_BARE_KEY = re.compile(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=_.-])")
# A path has one slash after the scheme. The password ends with the last @ of the authority; a
# password with an unescaped / or ? ends with the first @ after it. A number after a colon may be a
# port, except in URLs of databases.
_DATABASE_PASSWORD = re.compile(
    r"""(?<![\w+.-])((?:postgres(?:ql)?|mysql|mariadb|rediss?|mongodb|amqps?)(?:\+\w+)?"""
    r""":/{1,2}[^\s/?\#:@'"]*):[^\s'"@]{0,2000}@"""
)
_URL_PASSWORD = re.compile(
    r"""(?<![\w+.-])([A-Za-z][A-Za-z0-9+.-]*:/{1,2}[^\s/?\#:@'"]*):"""
    r"""(?:[^\s/?\#'"]{0,2000}@|(?![0-9]{1,5}[/?\#])[^\s'"@]{0,2000}@)"""
)
_URL_USER = re.compile(r"""(?<![\w+.-])([A-Za-z][A-Za-z0-9+.-]*://)([^\s/?\#:@'"]{16,})@""")
_PARAMETER = re.compile(r"([?&;])([\w.%~-]+)=([^&;#\s'\"]*)")
# Quotes may be escaped: JSON in JSON. The user of a URL whose password is masked is no name.
_ASSIGNMENT = re.compile(
    r"(?<![\w.-])(?!(?<=/)[\w.-]+:\*\*\*@)"
    r"""-*([A-Za-z_][\w.-]*)\\{0,9}["']?\s*[=:]\s*(?:\\{1,9}(?=["']))?(?=\S)"""
)
_OPTION = re.compile(r"(?<![\w.-])--?([A-Za-z][\w.-]*)\s+(?=[^\s-])")
# A text has one of these, in lower case, if `redact` masks anything else than tokens.
_SIGNS = tuple(
    "pass|pwd|pw=|pw:|pw |secret|credential|authorization|bearer |basic |negotiate |token|auth|key"
    "|sig|session|cookie|login|hooks.|webhooks|api.telegram|private|@|dsn|sas=|pat=|code=|-u |-u="
    "|-user |-user=|mysql|mariadb|mongo|redis-cli|ldapsearch|curl".split("|")
)
# Part of a name that people invent.
_NAME_PART = re.compile(r"[A-Za-z]?[a-z]*|[0-9]{1,4}|[a-z]+[0-9]{1,2}|[0-9]{1,2}[a-z]{1,3}|[A-Z]+")
_BARE_VALUE = re.compile(r"""[^\s,;&"'{}\[\]()]+""")
# Number of characters of a value that are examined; a secret is masked to its end.
_MAX_JUDGED_LENGTH = 256


def is_secret_name(name: str) -> bool:
    """Return True if a variable, option or setting of this name holds a secret.

    `HF_TOKEN`, `--db-password` and `apiKey` do; `max_tokens`, `eos_token`, `token_file` and `PWD`
    do not.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _DESCRIBING or words[0] in _COUNTING:
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
    return words in (["pass"], ["pw"])


def redact(text: str) -> str:
    """Return `text` with everything that looks like a secret replaced by `***`.

    Works on URLs, command lines, `NAME=value` and JSON, alone or inside other text; idempotent.
    """
    text = _PRIVATE_KEY.sub(MASK, text)
    while (end := _PRIVATE_KEY_END.search(text)) is not None:
        text = f"{text[: end.start()].rstrip(_KEY_CHARACTERS)}{MASK}{text[end.end() :]}"
    text = _SHAPES.sub(MASK, text)
    text = _BARE_KEY.sub(lambda match: MASK if _is_bare_key(match[0]) else match[0], text)
    for pattern in (_IN_CONTEXT, _PROGRAM_PASSWORD):
        text = pattern.sub(_without_context_secret, text)
    text = _AUTHORIZATION.sub(rf"\1{MASK}", text)
    text = _SCHEME_WITH_VALUE.sub(rf"\1{MASK}", text)
    if "@" in text:
        for pattern in (_DATABASE_PASSWORD, _URL_PASSWORD):
            passwords = {match[0][len(match[1]) :] for match in pattern.finditer(text)}
            text = pattern.sub(rf"\1:{MASK}@", text)
            for password in passwords:  # `:PASSWORD@`, in messages also without the scheme
                text = text.replace(password, f":{MASK}@")
        text = _URL_USER.sub(_without_random_user, text)
    text = _PARAMETER.sub(_without_parameter, text)
    return _without_values(_OPTION, _without_values(_ASSIGNMENT, text))


def redact_name(text: str) -> str:
    """Return `redact(text)`, in a fraction of the time for a text without signs of a secret.

    For names in recordings: of operations, annotations and frames. A key of 40 characters without
    a name is not masked.
    """
    lower = text.lower()
    if any(map(lower.__contains__, _SIGNS)) or _SHAPES.search(text):
        return redact(text)
    return text


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a command with their secrets masked.

    Masks what `redact` finds in each argument, and the whole VALUE of `--token VALUE` and
    `--token=VALUE`, whatever characters it has.
    """
    return tuple(_redacted_arguments(arguments))


def _redacted_arguments(arguments: Sequence[str]) -> Iterator[str]:
    option = password_option = None
    previous = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option is not None and not argument.startswith("-"):
            if option == password_option:
                yield MASK
                password_option = None  # `sshpass -p PASSWORD ssh -p PORT`
            else:
                yield _redacted_value(option, argument)
            option = None
            continue
        command = argument.rpartition("/")[2]
        for program in (command, f"{previous} {command}"):
            password_option = _PASSWORD_OPTIONS.get(program, password_option)
        if previous == "login" and re.fullmatch(r"[A-Za-z0-9]{40,}", argument):
            argument = MASK
        previous = command
        if argument[:2] == password_option and re.fullmatch(r"-.[^-\s=].*", argument):
            yield f"{password_option}{MASK}"
            password_option = None
            continue
        if equals and re.fullmatch(r"[-+~]*[\w.-]+", name) and _is_secret(name, value):
            yield f"{name}={MASK}"
        else:
            yield redact(argument)
        option = argument if argument.startswith("-") and not equals else None


def _redacted_value(option: str, value: str) -> str:
    """Mask the value of an option, given as a separate argument."""
    if _is_secret(option, value):
        return MASK
    account = re.fullmatch(r"([^/:]+:)(?!/|[0-9]{1,5}$).+", value, re.DOTALL)
    if account is not None and option in _ACCOUNT_OPTIONS:
        return f"{account[1]}{MASK}"
    return redact(value)


def _without_context_secret(match: re.Match[str]) -> str:
    prefix = next(group for group in match.groups() if group is not None)
    return f"{prefix}{MASK}"


def _is_bare_key(text: str) -> bool:
    """Return True if 40 characters of base64 look random, unlike a commit id or a path."""
    return (
        text.count("/") <= 3
        and all(re.search(kind, text) for kind in ("[A-Z]", "[a-z]", "[0-9]"))
        and _entropy(text) >= 4.4
    )


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    """Mask values by their names, also inside other values: `env="TOKEN=abc"`."""
    parts = []
    position = 0
    while (match := pattern.search(text, position)) is not None:
        begin = match.end() + (text[match.end()] in _QUOTES)
        parts.append(text[position:begin])
        position = begin
        if _is_secret(match[1], text[begin : _end_of_value(text, begin, _MAX_JUDGED_LENGTH)]):
            parts.append(MASK)
            position = _end_of_value(text, begin, len(text))
    return "".join([*parts, text[position:]])


def _end_of_value(text: str, begin: int, most: int) -> int:
    """Return the end of the value that begins at `begin`: the closing quote or end of the word."""
    quote = text[begin - 1]
    if quote in _QUOTES:
        end = begin
        while (end := text.find(quote, end, begin + most)) != -1 and text[end - 1] == "\\":
            end += 1
        if end != -1:
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
    """Return True if `value`, given under `name`, is a secret."""
    if len(value) == 1 or value.lower() in _NO_SECRET:
        return False
    if name.strip("-").lower() == "pass" and re.fullmatch(r"[0-9.,e+%-]+|inf", value):
        return False  # a count of passes or a time
    if is_secret_name(name):
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    doubtful = _OFTEN_HARMLESS.intersection(words)
    if not doubtful or words[-1] in _DESCRIBING or words[0] in _COUNTING:
        return False
    is_of_text = doubtful <= {"token", "tokens"} and _TOKENS_OF_TEXT.intersection(words)
    return not is_of_text and _is_random(value)


def _is_random(value: str) -> bool:
    """Return True if `value` is long, without structure, and mixes letters and digits."""
    if len(value) < 16 or not re.fullmatch(r"[A-Za-z0-9+_.~=-][A-Za-z0-9+/_.~=-]*", value):
        return False
    if not (re.search("[0-9]", value) and re.search("[A-Za-z]", value)):
        return False
    if re.search(r"/[^/]*\.[a-z]{2,8}$", value):
        return False  # the path of a file
    if all(_NAME_PART.fullmatch(part) for part in re.split(r"[/_.-]", value)):
        return False  # such as paged_adamw_8bit
    return _entropy(value) >= 3.0


def _entropy(text: str) -> float:
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)
