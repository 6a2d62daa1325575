"""Secrets are redacted in every form; other text is unchanged."""

import json
import random
import string
import time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.hostile.harmless_commands import harmless_command
from tests.hostile.secret_forms import all_forms
from unified_prof.base.redaction import MASK, is_secret_name, redact, redact_arguments, redact_name

_ALPHANUMERIC = string.ascii_letters + string.digits


def _letters(first: str, count: int, alphabet: str = _ALPHANUMERIC) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=count, max_size=count + 8).map(lambda rest: first + rest)


_HEX = "0123456789abcdef"
# Invented tokens in the formats of services.
_SHAPED = st.one_of(
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map("AKIA".__add__),
    _letters("ghp_", 36),
    _letters("github_pat_", 40),
    _letters("hf_", 34),
    _letters("sk-", 40),
    _letters("sk-proj-", 40),
    _letters("glpat-", 20),
    _letters("xoxb-", 24, string.digits),
    st.tuples(_letters("eyJ", 20), _letters("eyJ", 20), _letters("", 20)).map(".".join),
    _letters("gsk_", 52),
    _letters("dapi", 32, _HEX),
    _letters("r8_", 37),
    _letters("hvs.", 24),
    _letters("glsa_", 32),
    _letters("tskey-auth-", 20),
    _letters("xapp-1-", 30),
    _letters("GOCSPX-", 28),
    _letters("shpat_", 32, _HEX),
    _letters("lin_api_", 40),
    _letters("dckr_pat_", 27),
    _letters("pplx-", 48),
    _letters("tgp_v1_", 43),
    _letters("ak-", 22),
    _letters("pat", 80),
    _letters("AGE-SECRET-KEY-1", 58, string.ascii_uppercase + string.digits),
    _letters("eyJ", 60),
)
_SECRET = st.text(_ALPHANUMERIC + "!$%^*+_-", min_size=6, max_size=30).filter(
    lambda text: text.lower() not in ("", "none", "null", "true", "false") and text[0] != "-"
)
_SECRET_NAME = st.sampled_from(
    ["password", "token", "api_key", "api-key", "HF_TOKEN", "accessToken", "client_secret",
     "DB_PASSWORD", "PGPASSWORD", "aws_secret_access_key", "credentials"]
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    "password --password DB_PASSWORD PGPASSWORD passwd mysql_pwd passphrase secret client_secret "
    "token --hf-token HF_TOKEN accessToken ACCESS_TOKENS api_key apiKey APIKey OPENAI_API_KEY "
    "AWS_SECRET_ACCESS_KEY AccountKey private-key authorization model.auth.token db_pass "
    "AZURE_STORAGE_KEY sshpass X-Amz-Security-Token".split(),
)
def test_name_of_a_secret_is_recognized(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    "PWD OLDPWD key sort_key num_key_value_heads tokenizer max_tokens --max-new-tokens eos_token "
    "pad_token_id token_type_ids tokens tokens-per-batch token_file password_file PATH author "
    "keyboard monkey passes forward_pass secretary SSH_AUTH_SOCK client_id seed lr -- 42 ".split(
        " "
    ),
)
def test_other_name_is_not_a_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "postgresql+psycopg://me:pa55@db.example:5432/runs",
            "postgresql+psycopg://me:***@db.example:5432/runs",
        ),
        ("postgresql://db/runs?user=me&password=pa55", "postgresql://db/runs?user=me&password=***"),
        ("https://h/x?key=abc&v=1#top", "https://h/x?key=***&v=1#top"),
        ("s3://b/o?X-Amz-Signature=00ff&X-Amz-Date=1", "s3://b/o?X-Amz-Signature=***&X-Amz-Date=1"),
        ("redis://:pa55@cache/0", "redis://:***@cache/0"),
        ("https://me:p@55@host/path", "https://me:***@host/path"),
        ("https://me:a/b@host/path", "https://me:***@host/path"),
        ("https://3f7a9c1e5b2d8f604a6c@host/repo.git", "https://***@host/repo.git"),
        ("host=db password='a b' user=me", "host=db password='***' user=me"),
        ('{"api_key": "abc def", "lr": 0.1}', '{"api_key": "***", "lr": 0.1}'),
        ("KeyError: 'token=abc of x'", "KeyError: 'token=*** of x'"),
        ("docker run -e HF=TOKEN=abc", "docker run -e HF=TOKEN=***"),
        ('{"token": "abc', '{"token": "***'),
        (r'token="a\"b" c', 'token="***" c'),
        ("train.py --token abc --lr 0.1", "train.py --token *** --lr 0.1"),
        ("Authorization: Bearer abcdefgh12", "Authorization: ***"),
        ("curl -H 'X: Bearer abcdefgh12'", "curl -H 'X: Bearer ***'"),
        ("AccountKey=Zm9vYmFy==;Endpoint=x", "AccountKey=***;Endpoint=x"),
        ("cache_key=9f86d081884c7d659a2feaa0", "cache_key=***"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- b", "a *** b"),
    ],
)
def test_secret_in_a_text_is_redacted(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uprof run --backend cpu -o out train.py --epochs 3 --lr 1e-3",
        "train.py --max-tokens 4096 --eos-token </s> --sort-key name --tokenizer gpt2",
        "https://example.org:8080/a@b?page=2&order=key",
        "https://example.org:8080/path/me@example.org",
        "git commit 1f3870be274f6c49b3e31a0c6728957f1f3870be",
        "/data/runs/2026-01-01T00:00:00/report_rank3.db",
        "sqlite:////home/me/.uprof/baselines.sqlite",
        "C:/Users/me/report.db: not a database",
        "--token=None --password=",
        "pass=2",
        "backward pass = 3 ms",
        "num_secret_sharing=3",
        "docker run -u 1000:1000 image",
        "ssh -p 22 host",
        "PWD=/home/me/project",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redact(text) == text
    assert " ".join(redact_arguments(text.split(" "))) == text


CANARY = "Canary7x9"


@pytest.mark.parametrize(
    "command",
    [
        f"mysql -u root -p {CANARY}",
        f"mysql -h db -p{CANARY} runs",
        f"/usr/bin/sshpass -p {CANARY} ssh host",
        f"tool --pw {CANARY}",
        f"curl -u me:{CANARY} https://host",
        f"curl --user me:{CANARY} https://host",
        f"wandb login {CANARY * 5}",
        f"curl https://hooks.slack.com/services/T01/B02/{CANARY}",
        f"curl https://discord.com/api/webhooks/123/{CANARY}",
        f"curl https://api.telegram.org/bot12:{CANARY}/sendMessage",
        f"open https://host/callback?code={CANARY}",
        f"psql postgresql://u:12345/{CANARY}@host/db",
    ],
)
def test_secret_of_a_known_program_or_service_is_redacted(command: str) -> None:
    for shown in (redact(command), " ".join(redact_arguments(command.split(" ")))):
        assert CANARY not in shown
        assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"curl --header 'Authorization: Token {CANARY}'",
        f'{{"Authorization": "Digest {CANARY}"}}',
        f"machine host login me password {CANARY}",
        "aws configure set x wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
    ],
)
def test_secret_in_a_header_or_file_is_redacted(text: str) -> None:
    shown = redact(text)
    assert CANARY not in shown
    assert "wJalr" not in shown
    assert MASK in shown


@given(secret=_SHAPED, before=st.text(" ='\"/,:(", max_size=3), after=st.sampled_from(" ,'\");/"))
def test_token_of_a_known_format_is_redacted_anywhere(secret: str, before: str, after: str) -> None:
    assert secret not in redact(f"say{before or ' '}{secret}{after}")
    assert secret not in " ".join(redact_arguments(["x.py", secret, f"--note={secret}"]))


@given(name=_SECRET_NAME, secret=_SECRET)
def test_value_of_a_secret_name_is_redacted(name: str, secret: str) -> None:
    assume(secret not in name)
    for text in (
        f"--{name}={secret}",
        f"--{name} {secret} more",
        f"{name}={secret}",
        f'{{"{name}": "{secret}"}}',
        f"https://host/path?a=1&{name}={secret}",
    ):
        assert secret not in redact(text), text


@given(name=_SECRET_NAME, secret=st.text(min_size=6).filter(lambda text: text[0] != "-"))
def test_secret_argument_with_any_characters_is_redacted(name: str, secret: str) -> None:
    assume(secret.lower() not in name.lower() and secret not in f"--{name}={MASK}")
    assert redact_arguments(["x.py", f"--{name}", secret, "y"]) == ("x.py", f"--{name}", MASK, "y")
    assert redact_arguments([f"--{name}={secret}"]) == (f"--{name}={MASK}",)


@given(user=st.text(string.ascii_lowercase, max_size=8), secret=_SECRET)
@example(user="pass", secret="000000")
def test_password_in_a_url_is_redacted(user: str, secret: str) -> None:
    assume(secret not in user)
    assert redact(f"postgresql://{user}:{secret}@host:5432/d") == (
        f"postgresql://{user}:{MASK}@host:5432/d"
    )


@given(
    st.lists(
        st.sampled_from(["--token", "key", "=", ":", "//", "https", "@", "?", "&", " ", "'", '"',
                         "abc", "9f86d081884c7d659a2feaa0", "Bearer", "***", "-", "\n", ";"])
    ).map("".join)
)  # fmt: skip
def test_redaction_is_idempotent(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@given(st.lists(st.text()))
def test_redaction_keeps_the_number_of_arguments(arguments: list[str]) -> None:
    assert len(redact_arguments(arguments)) == len(arguments)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("seed", range(3))
def test_every_form_of_a_secret_is_redacted(seed: int) -> None:
    forms = all_forms(seed)
    assert len(forms) >= 180
    leaks = []
    for form in forms:
        arguments = ["python", "train.py", *form.arguments, "--lr", "0.1"]
        line = " ".join(arguments)
        for shown in (
            " ".join(redact_arguments(arguments)),
            redact(line),
            redact_name(line),
            redact(json.dumps({"x": form.arguments})) if len(form.arguments) == 1 else "",
        ):
            leaks += [(form, shown) for piece in form.pieces if piece.decode() in shown]
        assert redact(redact(line)) == redact(line)
    assert leaks == []


def test_password_of_a_url_is_redacted_where_it_is_repeated() -> None:
    text = "s3://me:hunter22@b: Invalid bucket name 'me:hunter22@b'"
    assert redact(text) == f"s3://me:{MASK}@b: Invalid bucket name 'me:{MASK}@b'"


def test_rest_of_a_private_key_is_redacted() -> None:
    text = "error: bTk3\nQWxhZGRpbg==\n-----END RSA PRIVATE KEY-----\nb"
    assert redact(text) == f"error: {MASK}\nb"


@pytest.mark.slow
def test_a_thousand_harmless_command_lines_are_unchanged() -> None:
    chance = random.Random(11)
    changed = []
    for _ in range(1000):
        arguments = harmless_command(chance)
        shown = redact_arguments(arguments)
        changed += [pair for pair in zip(arguments, shown, strict=True) if pair[0] != pair[1]]
        line = " ".join(arguments)
        changed += [(line, redact(line))] if redact(line) != line else []
    assert changed == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["a", "a:", "a://", "x://a:b", "- ", '"a="', "?a=", "eyJ", "key=", "token='"]
)
def test_redaction_takes_linear_time(text: str) -> None:
    began = time.process_time()
    redact(text * (30_000 // len(text)) + "@")
    assert time.process_time() - began < 3
