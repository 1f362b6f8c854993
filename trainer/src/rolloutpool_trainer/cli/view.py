"""`rolloutpool view`: the viewer on this machine, in front of a file of results or of a pool."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import options

if TYPE_CHECKING:
    from rolloutpool_trainer.viewer.pool_relay import PoolRelay
    from rolloutpool_trainer.viewer.result_file import ResultFile


def view(
    source: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="What `rolloutpool results` wrote, or the URL of a pool's API.")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="Shows tokens as its text, not as ids; needs the extra `callback`.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Opens it in this machine's browser.")] = False,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Look at results in a browser, from a file or from a pool. Prints the address; Ctrl-C ends it.

    Only who knows the address can look: it has a secret part. A file that still grows is followed.
    """
    import webbrowser

    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import ViewDocument
    from rolloutpool_trainer.viewer.server import ViewerServer

    found = _source(source, api_key)
    pieces = None if tokenizer is None else _pieces(tokenizer)
    try:
        server = ViewerServer(found, port=port, pieces=pieces)
    except OSError as error:
        raise typer.BadParameter(f"cannot listen on port {port}: {error.strerror}", param_hint="--port") from None
    if as_json:
        console.document(ViewDocument(address=server.address), one_line=True)
    else:
        console.line(server.address)
    console.note("Ctrl-C ends it.")
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


def _source(source: str, api_key: str | None) -> "ResultFile | PoolRelay":
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.viewer.pool_relay import PoolRelay
    from rolloutpool_trainer.viewer.result_file import ResultFile

    if source.startswith(("http://", "https://")):
        return PoolRelay(source.partition("#")[0].rstrip("/").removesuffix("/ui"), api_key)
    found = ResultFile(Path(source))
    console.note(f"{len(found.uids):,} rollouts of {len(found.batch_ids):,} batches")
    if found.left_out:
        console.note(f"{found.left_out:,} lines are no results and are left out")
    return found


def _pieces(tokenizer: str) -> Callable[[str], bytes]:
    """Loads a tokenizer, which says what the tokens of all results read, whatever made them."""
    from rolloutpool_trainer.cli import console, tokenizers

    loaded = tokenizers.load(tokenizer)
    from rolloutpool_common.rendering.pieces import find_pieces

    document = find_pieces(loaded).model_dump_json().encode()
    ours = loaded.fingerprint.tokenizer_sha256
    warned: set[str] = set()

    def answer(made_with: str) -> bytes:
        if made_with != ours and made_with not in warned:
            warned.add(made_with)
            files = f"tokenizer.json of {tokenizer} is {ours[:12]}, the worker's was {made_with[:12]}"
            console.note(f"the text may be wrong: {files}")
        return document

    return answer
