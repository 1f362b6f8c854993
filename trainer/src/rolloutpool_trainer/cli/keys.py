"""`make-key` and `make-secrets-key`: an operator needs both before a pool listens beyond its own machine.

Neither command talks to a pool. An API key is printed here once; the API knows only its hash.
"""

from typing import Annotated

import typer

from rolloutpool_common.security.api_keys import KeyScope, make_key, parse_expiry, parse_quota
from rolloutpool_trainer.cli import options


def make_api_key(
    name: Annotated[str, typer.Argument(help="Owner of the batches; a second key of this name sees the same ones.")],
    scopes: Annotated[
        str, typer.Option(help="Some of submit, read, metrics, admin, separated by commas.")
    ] = "submit,read",
    quota: Annotated[
        str, typer.Option(help="What its name may hold at a time, like open=5000,bytes=2gb,weight=8. Empty: no limit.")
    ] = "",
    expires: Annotated[str, typer.Option(help="When the key ends, in UTC, like 2026-12-01T00:00:00Z.")] = "",
    as_json: options.Json = False,
) -> None:
    """Make an API key: the key, which is shown once, and its entry for the API."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import KeyDocument

    wanted = [scope.strip() for scope in scopes.split(",")]
    try:
        if unknown := [scope for scope in wanted if scope not in list(KeyScope)]:
            raise ValueError(f"{unknown[0]!r} is no scope: there are {', '.join(KeyScope)}")
        key, made = make_key(
            name,
            [KeyScope(scope) for scope in wanted],
            quota=parse_quota(option.strip() for option in quota.split(",") if option.strip()),
            expires=parse_expiry(expires) if expires else None,
        )
        if made.is_expired():
            raise ValueError(f"--expires {expires} is past, so the key would open nothing")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        console.document(KeyDocument(key=key, entry=made.entry()))
        return
    console.pairs({"key": key, "entry": made.entry()})
    console.note(
        "key: for the callers, as ROLLOUTPOOL_API_KEY; it is kept nowhere. "
        "entry: for the API, in ROLLOUTPOOL_API_KEYS or a line of ROLLOUTPOOL_API_KEYS_FILE"
    )


def make_secrets_key(as_json: options.Json = False) -> None:
    """Make a key for ROLLOUTPOOL_SECRETS_FILE, with which API and workers encrypt callers' secrets in Redis."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import SecretsKeyDocument
    from rolloutpool_trainer.local.state import new_secrets_key

    key = new_secrets_key()
    if as_json:
        console.document(SecretsKeyDocument(key=key))
    else:
        console.line(key)
