"""Who may call, and how often."""

import base64
import binascii
import hashlib
import hmac

from limits import RateLimitItem, parse

from service.errors import Forbidden, RateLimited, Unauthorized
from service.exchange import Exchange
from service.metrics import Metrics
from service.peers import Peers
from service.settings import Settings

GUARDED, OPEN = ("/v1/", "/v2/"), "/v2/health/"


def guarded(path: str) -> bool:
    """Whether an API key and a rate limit protect a path; health, metrics and pages are open."""
    return path == "/v2" or (path.startswith(GUARDED) and not path.startswith(OPEN))


KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""How a key is sent, as OpenAPI's `securitySchemes`."""

KEY_NEEDED: list[dict[str, list[str]]] = [{name: []} for name in KEY_SCHEMES]
"""OpenAPI's `security` of an operation that needs a key, either way."""


class Access:
    """API keys and the rate limit, both off unless they are set; admins and tutors, nobody unless they have keys.

    A caller is its key where keys are asked for, else its address.
    """

    def __init__(self, settings: Settings, metrics: Metrics, peers: Peers) -> None:
        """Read the keys, which are kept as digests, and `rate_limit`, which is counted by `peers`."""
        self._keys, self._admin_keys = _digests(settings.api_keys), _digests(settings.admin_keys)
        self._tutor_keys = _digests(settings.tutor_keys)
        self._rate: RateLimitItem | None = parse(settings.rate_limit) if settings.rate_limit else None
        self._peers = peers
        self._metrics = metrics

    async def check(self, exchange: Exchange, client: tuple[str, int] | None) -> None:
        """Let a request pass.

        Raises:
            Unauthorized: if a key is asked for and none came.
            Forbidden: if the key is not known.
            RateLimited: if the caller is over its rate.
        """
        caller = self.caller(exchange, client)
        if self._rate is not None and (wait_s := await self._peers.hit(caller)):
            self._metrics.rejected.labels("rate").inc()
            raise RateLimited(f"more than {self._rate} from one caller", retry_after_s=wait_s)

    @property
    def limited(self) -> bool:
        """Whether there is a limit to how often a caller may call."""
        return self._rate is not None

    def caller(self, exchange: Exchange, client: tuple[str, int] | None) -> str:
        """Who calls; errors as in `check`, but for the rate."""
        if self._keys:
            known = self._keys + self._admin_keys + self._tutor_keys
            return _check_key(exchange, known, "the API key is not known")
        return client[0] if client else "unknown"

    def check_admin(self, exchange: Exchange) -> None:
        """Let a request pass that changes what is served.

        Raises:
            Unauthorized: if no key came.
            Forbidden: if the key is not an admin's, or nobody is one.
        """
        _check_role(exchange, self._admin_keys, "ATTENTION_ADMIN_KEYS")

    def check_tutor(self, exchange: Exchange) -> None:
        """Let a request pass that asks for solutions.

        Raises:
            Unauthorized: if no key came.
            Forbidden: if the key is not a tutor's, or nobody is one.
        """
        _check_role(exchange, self._tutor_keys, "ATTENTION_TUTOR_KEYS")


def _check_role(exchange: Exchange, known: list[bytes], setting: str) -> None:
    if not known:
        raise Forbidden(f"nobody may do this here; to allow it to those with a certain key, set {setting}")
    _check_key(exchange, known, f"this takes one of {setting}; another key came")


def _digests(keys: tuple[str, ...]) -> list[bytes]:
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def _check_key(exchange: Exchange, known: list[bytes], otherwise: str) -> str:
    """The digest of a request's key, if it is one of those known."""
    keys = _keys(exchange)
    if not keys:
        raise Unauthorized("send an API key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`")
    for key in keys:
        digest = hashlib.sha256(key).digest()
        # Every key is compared, and in constant time, so that timing tells nothing.
        if sum(hmac.compare_digest(digest, one) for one in known):
            return digest.hex()
    raise Forbidden(otherwise)


def _keys(exchange: Exchange) -> list[bytes]:
    """What came as a key: one, or, where a client can send a user and a password only, either of them."""
    if key := exchange.headers.get(b"x-api-key", b""):
        return [key]
    scheme, _, token = exchange.headers.get(b"authorization", b"").partition(b" ")
    found: list[bytes] = []
    if scheme.lower() == b"bearer":
        found = [token.strip()]
    elif scheme.lower() == b"basic":
        try:
            user, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        except binascii.Error:
            return []
        found = [password, user] if colon else []
    return [key for key in found if key]
