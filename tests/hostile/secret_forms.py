"""Forms in which secrets occur in commands, variables, URLs and files.

All secrets are invented. The shapes of tokens are those of the rules of gitleaks.
"""

import random
import string
from dataclasses import dataclass

ALPHANUMERIC = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
PIECE = 8  # Characters of a secret that may not be shown together.

# Prefix, number and kind of the characters after it.
_SHAPES_OF_SERVICES = """
AKIA 16 U, ASIA 16 U, ghp_ 36 A, gho_ 36 A, ghs_ 36 A, github_pat_ 82 A, hf_ 34 A, api_org_ 34 A,
sk- 48 A, sk-proj- 48 A, sk-ant-api03- 80 A, glpat- 20 A, gldt- 20 A, glft- 20 A, xoxb- 24 A,
xoxp- 24 A, xapp-1- 30 A, AIza 35 A, ya29. 60 A, GOCSPX- 28 A, gsk_ 52 A, dapi 32 h, r8_ 37 A,
hvs. 24 A, hvb. 24 A, glsa_ 32 A, glc_ 60 A, tskey-auth- 20 A, shpat_ 32 h, lin_api_ 40 A,
dckr_pat_ 27 A, pplx- 48 A, tgp_v1_ 43 A, ak- 22 A, as- 22 A, pat 80 A, AGE-SECRET-KEY-1 58 U,
npm_ 36 A, pypi- 60 A, nvapi- 60 A, dop_v1_ 64 h, doo_v1_ 64 h, dor_v1_ 64 h, p8e- 32 a, LTAI 20 A,
ATATT3 186 A, CLOJARS_ 60 a, dp.pt. 43 A, duffel_live_ 43 A, dt0c01. 24 U, EZAK 54 A, EAAM 100 A,
FLWSECK_TEST- 32 h, fio-u- 64 A, pat. 22 A, HRKU-AA 58 A, ico- 32 A, AKCp 69 A, NRAK- 27 U,
ntn_ 46 A, sha256~ 43 A, pscale_pw_ 43 A, PMAK- 59 h, pnu_ 36 A, pul- 40 h, rdme_ 70 a,
rubygems_ 48 h, tk-us- 48 A, xkeysib- 64 h, sntrys_ 80 A, sm_pat_ 16 A, shippo_live_ 40 h,
sgp_ 40 h, sq0atp- 22 A, tfp_ 59 A, ops_eyJ 250 A, v1.0- 24 h, API- 26 U, dnkey- 26 a, fm2_ 100 A,
SK 32 h, 123456789:AA 33 A, abc8Q~ 34 A, wandb_v1_ 60 A, aBcDeFgHiJkLmN.atlasv1. 64 A, key- 32 h,
live_ 35 h, esecret_ 40 A, xai- 80 A, lsv2_pt_ 32 h, pcsk_ 70 A, rk_live_ 24 A, sk_live_ 24 A,
eyJ 60 A
"""
_KINDS = {
    "a": string.ascii_lowercase + string.digits,
    "A": ALPHANUMERIC,
    "U": string.ascii_uppercase + string.digits,
    "h": HEX,
}

# Words of a command line; @ is the secret.
_CONTEXTS = """
--password @|--password=@|--db-password @|--pw @|--passwd @|--passphrase @|--token @|--token=@
--hf_token @|--hub_token=@|--api-key @|--api_key=@|--wandb-api-key @|--access-token @|--secret @
--client-secret @|--aws_secret_access_key @|--private-key @|--auth-token @|--credentials @
+logger.api_key=@|++wandb.key.api_key=@|hub.token=@|model.auth.password=@|{"api_key":"@"}
HF_TOKEN=@|WANDB_API_KEY=@|PGPASSWORD=@|AWS_SESSION_TOKEN=@|MYSQL_PWD=@|NGC_API_KEY=@|SSHPASS=@
env HF_TOKEN=@ python|docker run -e HF_TOKEN=@ image|export OPENAI_API_KEY=@|--env=HF_TOKEN=@
mysql -u root -p @|mysql -h db -p@ runs|/usr/bin/sshpass -p @ ssh host|mysqldump --password=@
curl -u me:@ https://h|curl --user me:@ https://h|curl --user=me:@ https://h|curl -ume:@ https://h
wandb login @|huggingface-cli login --token @|docker login -u me -p @ registry|redis-cli -a @
machine h login me password @|https://user:@@h/x|https://@@h/repo.git|ssh://git:@@h/a
postgresql://u:@@h/db|postgresql+psycopg://u:12345/@@h/db|redis://:@@cache/0|mongodb+srv://u:@@h/d
amqp://u:@@mq:5672/v|mysql+pymysql://u:@@h/d|git+https://oauth2:@@gitlab.com/g/r.git|ftp://u:@@h/f
https://h/x?token=@|https://h/x?key=@&v=1|https://h/cb?code=@|https://h/x?a=1&password=@
https://h/x?access_token=@#top|s3://b/o?X-Amz-Signature=@|https://b.blob/c?sv=1&sig=@
postgresql://db/runs?user=me&password=@|sqlite+pysqlcipher://:@@/x.db|AccountKey=@;EndpointSuffix=x
DefaultEndpointsProtocol=https;AccountName=a;AccountKey=@|Server=h;User Id=me;Password=@;
https://hooks.slack.com/services/T01/B02/@|https://discord.com/api/webhooks/123/@
https://api.telegram.org/bot12:@/sendMessage|https://discordapp.com/api/webhooks/123/@
"""
_WITH_SPACES = (
    ("--header", "Authorization: Token @"),
    ("-H", "Authorization: Bearer @"),
    ("-H", "Proxy-Authorization: Basic @"),
    ("-H", "X-Api-Key: @"),
    ("-H", "PRIVATE-TOKEN: @"),
    ("--header=Authorization: Token @",),
    ("--header", "Cookie: session=@"),
    ("-c", "export HF_TOKEN=@; python train.py"),
    ("-c", "curl -u me:@ https://h | sh"),
    ("-c", "sshpass -p @ scp a b:"),
    ("--config", '{"token": "@", "lr": 0.1}'),
    ("--dsn", "host=db user=me password='@'"),
    ("--key", "-----BEGIN RSA PRIVATE KEY-----\n@\n-----END RSA PRIVATE KEY-----"),
)


@dataclass(frozen=True, slots=True)
class Form:
    """Arguments of a command, and the secret in them."""

    arguments: tuple[str, ...]
    secret: str

    @property
    def pieces(self) -> list[bytes]:
        """Parts of the secret, none of which may be shown.

        Those of digits only are left out, because figures of reports contain them by chance.
        """
        random_part = self.secret[-24:]
        begins = range(0, len(random_part) - PIECE + 1, PIECE)
        parts = (random_part[at : at + PIECE] for at in begins)
        return [part.encode() for part in parts if not part.isdecimal()]


def service_tokens(chance: random.Random) -> list[str]:
    """Return a token of each known shape."""
    found = []
    for shape in _SHAPES_OF_SERVICES.replace("\n", " ").split(","):
        prefix, count, kind = shape.split()
        found.append(prefix + "".join(chance.choices(_KINDS[kind], k=int(count))))
    return found


def all_forms(seed: int) -> list[Form]:
    """Return every form with its own secret."""
    chance = random.Random(seed)
    forms = [Form((token,), token) for token in service_tokens(chance)]
    lines = [line.split() for line in _CONTEXTS.replace("\n", "|").split("|") if line]
    for words in (*lines, *_WITH_SPACES):
        secret = "".join(chance.choices(ALPHANUMERIC, k=24 if "login" not in words else 40))
        pattern = [word.replace("@@", "\0@").replace("@", secret, 1) for word in words]
        arguments = tuple(word.replace(f"\0{secret}", f"{secret}@") for word in pattern)
        forms.append(Form(arguments, secret))
    return forms
